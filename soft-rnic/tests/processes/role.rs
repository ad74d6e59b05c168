//! Roles: this program starts itself again with a role's name and arguments, and sends it lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

const ROLE: &str = "SOFT_RNIC_TEST_ROLE";

/// The time in seconds after which a role counts as hanging, and the variable that changes it.
const ALARM: u32 = 60;
const ALARM_VARIABLE: &str = "SOFT_RNIC_TEST_ALARM";

/// The longest pause of a thread, well below the alarm.
const MOST_HELD_UP: Duration = Duration::from_secs(15);

/// The time that a parent waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Plays the role that this process was started in, if any; returns whether it was.
pub(crate) fn play() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let arguments: Vec<String> = role.split(' ').map(str::to_owned).collect();
    let seconds = std::env::var(ALARM_VARIABLE).ok().and_then(|text| text.parse().ok());
    // SAFETY: the call accesses no memory.
    unsafe { libc::alarm(seconds.unwrap_or(ALARM)) };
    // Some roles abort on purpose, and nobody needs their core dumps.
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is a readable local.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    match arguments[0].as_str() {
        "revoke" => crate::revocation::owner(&arguments[1..]),
        "sender" => crate::revocation::sender(),
        "without" => crate::revocation::owner_of_one_without(&arguments[1..]),
        "threads" => crate::revocation::threads(&arguments[1..]),
        "death" => crate::death::receiver(&arguments[1..]),
        "death-sender" => crate::death::sender(),
        "sleeper" => crate::death::sleeper(),
        "requester" => crate::death::requester(&arguments[1..]),
        "responder" => crate::death::responder(),
        "deaths" => crate::death::many_deaths(),
        "sender-to-all" => crate::multicast::sender(&arguments[1..]),
        "sleeping-sender" => crate::multicast::sleeping_sender(),
        "member" => crate::multicast::member(),
        "scribbled" => crate::scribble::victim(&arguments[1..]),
        "scribbler" => crate::scribble::scribbler(),
        "stuck" => crate::stuck::requester(&arguments[1..]),
        "stuck-owner" => crate::stuck::owner(&arguments[1..]),
        "xrc-sender" => crate::xrc::sender(),
        "xrc-target" => crate::xrc::target(&arguments[1]),
        "xrc-receiver" => crate::xrc::receiver(&arguments[1]),
        "window-owner" => crate::windows::owner(&arguments[1..]),
        "window-peer" => crate::windows::peer(),
        "cm-worker" => crate::connection_soak::worker(&arguments[1..]),
        "rsocket" => crate::rsockets::side(&arguments[1..]),
        "cm-side" => crate::connections::side(),
        "status" => crate::status::shown(&arguments[1..]),
        "announced" => crate::announced::play(&arguments[1]),
        "unanswered" => crate::unanswered::play(&arguments[1]),
        "implicit" => crate::implicit::play(&arguments[1..]),
        "implicit-owner" => crate::implicit::owner(),
        "regions" => crate::regions::play(&arguments[1..]),
        "region-owner" => crate::regions::owner(&arguments[1..]),
        "copies" => crate::copies::play(&arguments[1..]),
        "sends" => crate::sends::play(&arguments[1..]),
        role @ ("guest-case" | "guest-victim" | "guest-honest" | "guest") => {
            crate::guest::play(role, &arguments[1..]);
        }
        "wakes" => crate::wakes::play(&arguments[1]),
        "wakes-sender" => crate::wakes::sender(),
        "worker" => crate::soak::worker(&arguments[1..]),
        "partner" => crate::partner::play(&arguments[1..]),
        "users" => crate::users::play(&arguments[1]),
        "limits" => crate::limits::play(&arguments[1]),
        "footprint" => crate::footprint::play(&arguments[1]),
        other => panic!("unknown role {other}"),
    }
    true
}

/// Runs a role, and expects it to succeed.
pub(crate) fn run(arguments: &str, variables: &[(&str, &str)]) -> Result<(), Failed> {
    let status = status_of(arguments, variables)?;
    if status.success() { Ok(()) } else { Err(format!("{arguments}: {status}").into()) }
}

/// The exit code of a role that was too slow to check a condition in time, because the machine was
/// busy.
const TOO_LATE: i32 = 75;

/// Ends a role whose check came after the time in which its condition must hold.
pub(crate) fn end_too_late() -> ! {
    std::process::exit(TOO_LATE)
}

/// Like [`run`], for a role that checks conditions during a pause. If it was too late, runs it
/// again with a longer pause.
pub(crate) fn run_within(
    first: Duration,
    arguments: impl Fn(Duration) -> String,
    variables: impl Fn(Duration) -> Vec<(&'static str, String)>,
) -> Result<(), Failed> {
    let mut time = first;
    loop {
        let (arguments, variables) = (arguments(time), variables(time));
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let status = status_of(&arguments, &variables)?;
        if status.success() {
            return Ok(());
        }
        time *= 3;
        if status.code() != Some(TOO_LATE) || time > MOST_HELD_UP {
            return Err(format!("{arguments}: {status}").into());
        }
    }
}

fn status_of(arguments: &str, variables: &[(&str, &str)]) -> Result<ExitStatus, Failed> {
    let mut role = ChildRole::start(arguments, variables);
    let own = variables.iter().find(|(name, _)| *name == ALARM_VARIABLE);
    let alarm = own.and_then(|(_, seconds)| seconds.parse().ok()).unwrap_or(ALARM);
    let begin = Instant::now();
    loop {
        if let Some(status) = role.child.try_wait()? {
            return Ok(status);
        }
        if begin.elapsed() > Duration::from_secs(u64::from(alarm) + 10) {
            return Err(format!("role {arguments} does not end").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The name of an unused fabric.
pub(crate) fn fabric() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A process in a role.
pub(crate) struct ChildRole {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl ChildRole {
    /// Starts this program in a role. The role uses the caller's fabric, or else a new one.
    pub(crate) fn start(arguments: &str, variables: &[(&str, &str)]) -> Self {
        Self::with(Command::new("/proc/self/exe"), arguments, variables)
    }

    /// Starts the role with this command, for example through another program.
    pub(crate) fn with(mut command: Command, arguments: &str, variables: &[(&str, &str)]) -> Self {
        command.env(ROLE, arguments).env_remove("SOFT_RNIC_FAULTS").env_remove("SOFT_RNIC_TEST_CRASH");
        if std::env::var_os("SOFT_RNIC_FABRIC").is_none() {
            command.env("SOFT_RNIC_FABRIC", fabric());
        }
        command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: the closure makes one system call, which is safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().expect("this program can be started again");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("stdout is a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, stdin, lines }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the child is not reaped yet");
    }

    /// Sends a line to the process, which may be dead.
    pub(crate) fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// The next line from the process.
    pub(crate) fn hear(&self) -> String {
        match self.hear_within(PATIENCE) {
            Ok(line) => line,
            Err(error) => panic!("process {:?} says nothing: {error}", self.pid()),
        }
    }

    pub(crate) fn hear_within(&self, time: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(time)
    }

    /// Waits until the process has stopped itself.
    pub(crate) fn wait_stopped(&self) {
        self.wait_for(WaitIdOptions::STOPPED, "stopped");
    }

    /// Waits until the process is dead, and leaves it a zombie.
    pub(crate) fn wait_dead(&self) {
        self.wait_for(WaitIdOptions::EXITED, "dead");
    }

    fn wait_for(&self, what: WaitIdOptions, name: &str) {
        let begin = Instant::now();
        let options = what | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(self.pid()), options).expect("a child").is_none() {
            assert!(begin.elapsed() < PATIENCE, "process {:?} is not {name}", self.pid());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the process end by itself, and expects success.
    pub(crate) fn finish(mut self) {
        self.stdin = None;
        self.wait_dead();
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "a role failed: {status}");
    }
}

impl Drop for ChildRole {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next line from the parent; `None` at the end.
pub(crate) fn told() -> Option<String> {
    let mut line = String::new();
    let length = std::io::stdin().lock().read_line(&mut line).expect("a pipe");
    (length > 0).then(|| line.trim().to_owned())
}

/// Makes this process die or stop at the step that its parent named. Earlier passes of the step do
/// not count, because a busy machine makes more of them.
pub(crate) fn arm_crash() {
    if let Ok(rule) = std::env::var("SOFT_RNIC_TEST_CRASH")
        && !rule.is_empty()
    {
        let rules = soft_rnic::faults::parse(&rule).expect("a rule");
        soft_rnic::faults::set(rules, 0).expect("a rule that can be set later");
    }
}

/// Sends a line to the parent.
pub(crate) fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| stdout.flush())
        .expect("the parent listens");
}
