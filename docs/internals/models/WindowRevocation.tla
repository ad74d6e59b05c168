-------------------------- MODULE WindowRevocation --------------------------
(* One-sided operations on windows over a queue pair: revocation, and what  *)
(* happens after a queue pair failed. docs/internals/window-model.md says   *)
(* what is modelled, and how to run it.                                     *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Windows,    \* How many windows the owner offers.
    Keys,       \* How many different rkeys the device has.
    Operations, \* How many operations the initiator begins.
    QueuePairs, \* How many queue pairs the initiator makes, one after the other.
    Kinds,      \* Subset of {"put", "get", "add"}.
    Guard,      \* What keeps a late packet from the next region that has its rkey (below).
    Ordered,    \* Whether the messages of a side are handled in their order.
    Broken      \* Names of the rules that this variant breaks.

(* Guards:
   "fresh"   each region is registered under addresses that no other region
             of the connection had (ibv_reg_mr_iova)
   "wait"    no region is registered while an rkey is retired; the window
             is offered for messages alone
   "end"     like "wait", but the owner may end all responders, and then
             registers it; it makes no responder while an rkey is retired
   "check"   a region with a retired rkey is not offered; the device accepts
             operations from the registration on
   "atomic"  like "check", with a device that accepts none before the check
   "none"    no guard *)
ASSUME Guard \in {"fresh", "wait", "end", "check", "atomic", "none"}

Rules == {
    "CLOSED is sent after the responder is in ERR",
    "ENDED waits for operations",
    "ENDED waits for CLOSED",
    "a key is retired before its region is deregistered",
    "a region is deregistered before revoke returns",
    "messages find the table",
    "repeats wait for CLOSED",
    "new operations wait for CLOSED",
    "atomics are not repeated",
    "operations that were given up are not repeated",
    "operations on revoked windows end",
    "packets of an earlier queue pair are dropped",
    "regions that are not offered have no remote access",
    "no responder is made while a key is retired",
    "keys of revoked windows are refused"}
ASSUME Broken \subseteq Rules
Keeps(rule) == rule \notin Broken

VARIABLES
    \* The owner: the state of each window, its rkey (0: none), the device's regions by rkey, and
    \* the retired rkeys.
    window, rkey, regions, retired,
    \* The memory of each window: the operation that changed it last, or 0 for bytes that the owner's
    \* program wrote. And the operations that were done when it wrote.
    memory, covered,
    \* The owner's responders, by the number of the queue pair: state and next sequence number.
    responder, expected,
    \* The initiator's queue pair, and how many it has made.
    qp, made,
    \* Its operations, the windows that it knows to be revoked, and those that it has answered.
    op, refused, ended,
    \* Packets are never removed: each may be lost, late or repeated. Messages arrive once.
    packets, toOwner, toInitiator,
    \* For the invariants: how often each operation was performed, and what went wrong.
    performed, harm

owner == <<window, rkey, regions, retired>>
device == <<memory, covered, performed, harm>>
responders == <<responder, expected>>
initiator == <<qp, made, op, refused, ended>>
vars == <<owner, device, responders, initiator, packets, toOwner, toInitiator>>

None == 0
Dud == -1 \* A region without remote access.
Unused == [kind |-> "none", window |-> 0, state |-> "unused", qp |-> 0, psn |-> 0, behind |-> {}]

Init ==
    /\ window = [w \in 1..Windows |-> "none"]
    /\ rkey = [w \in 1..Windows |-> None]
    /\ regions = [r \in 1..Keys |-> None]
    /\ retired = {}
    /\ memory = [w \in 1..Windows |-> 0]
    /\ covered = [w \in 1..Windows |-> {}]
    /\ responder = [q \in 1..QueuePairs |-> "none"]
    /\ expected = [q \in 1..QueuePairs |-> 1]
    /\ qp = "none"
    /\ made = 0
    /\ op = [o \in 1..Operations |-> Unused]
    /\ refused = {}
    /\ ended = {}
    /\ packets = {}
    /\ toOwner = <<>>
    /\ toInitiator = <<>>
    /\ performed = [o \in 1..Operations |-> 0]
    /\ harm = {}

(* Messages *)

Indices(channel) == IF Ordered THEN {1} \cap DOMAIN channel ELSE DOMAIN channel
Without(channel, i) == SubSeq(channel, 1, i - 1) \o SubSeq(channel, i + 1, Len(channel))

(* Operations *)

Changes == {"put", "add"}
UnderWay(o) == op[o].state \in {"posted", "flushed", "asked"}
\* A packet of the operation may be on the way to a responder that accepts it.
MayArrive(o) ==
    \/ op[o].state = "posted"
    \/ qp \in {"error", "closing"} /\ op[o].qp = made /\ op[o].state \in {"flushed", "unknown"}
IsOver(o) == op[o].state \in {"done", "refused", "unknown"}

\* An operation changes or reads the memory of a window.
Perform(o, target) ==
    /\ memory' = IF op[o].kind \in Changes THEN [memory EXCEPT ![target] = o] ELSE memory
    /\ performed' = [performed EXCEPT ![o] = IF op[o].kind = "add" /\ @ = 1 THEN 2 ELSE 1]
    /\ harm' = harm
        \cup (IF target # op[o].window THEN {"another window"} ELSE {})
        \cup (IF window[target] = "revoked" THEN {"after revoke"} ELSE {})
    /\ UNCHANGED covered

(* The owner offers and revokes windows. Several threads may do so at once. *)

IsNext(w) == \A other \in 1..Windows : window[other] = "none" <=> other >= w

FreeKeys == {r \in 1..Keys : regions[r] = None}
MayRegister == FreeKeys # {} /\ (Guard = "wait" => retired = {})

Register(w, r) ==
    /\ IsNext(w)
    /\ r \in FreeKeys /\ MayRegister
    /\ IF Guard = "atomic" /\ r \in retired
       THEN regions' = [regions EXCEPT ![r] = Dud] /\ UNCHANGED <<window, rkey>>
       ELSE /\ regions' = [regions EXCEPT ![r] = w]
            /\ rkey' = [rkey EXCEPT ![w] = r]
            /\ window' = [window EXCEPT ![w] = "registered"]
    /\ responder' = IF Guard = "end" /\ retired # {} THEN
        [q \in 1..QueuePairs |-> IF responder[q] = "ready" THEN "error" ELSE responder[q]] ELSE responder
    /\ UNCHANGED <<expected, retired, device, initiator, packets, toOwner, toInitiator>>

RegisterAgain(w) ==
    /\ window[w] = "registered" /\ Guard = "check" /\ rkey[w] \in retired
    /\ regions' = [regions EXCEPT ![rkey[w]] = Dud]
    /\ rkey' = [rkey EXCEPT ![w] = None]
    /\ window' = [window EXCEPT ![w] = "none"]
    /\ UNCHANGED <<retired, device, responders, initiator, packets, toOwner, toInitiator>>

Offer(w) ==
    /\ \/ window[w] = "registered" /\ (Guard = "check" => rkey[w] \notin retired)
       \/ IsNext(w) /\ ~MayRegister
    /\ window' = [window EXCEPT ![w] = "offered"]
    /\ UNCHANGED <<rkey, regions, retired, device, responders, initiator, packets, toOwner, toInitiator>>

\* The owner's program learns from the initiator's which operations are done, and writes in their place.
Write(w) ==
    LET done == {o \in 1..Operations :
            op[o].kind \in Changes /\ op[o].window = w /\ op[o].state = "done"}
    IN /\ window[w] = "offered" /\ done \ covered[w] # {}
       /\ covered' = [covered EXCEPT ![w] = done]
       /\ memory' = [memory EXCEPT ![w] = 0]
    /\ UNCHANGED <<performed, harm, owner, responders, initiator, packets, toOwner, toInitiator>>

Retire(w) == IF Guard = "fresh" THEN retired ELSE retired \cup ({rkey[w]} \ {None})
RetiresFirst == Keeps("a key is retired before its region is deregistered")

\* The table refuses it.
BeginRevoke(w) ==
    /\ window[w] = "offered"
    /\ window' = [window EXCEPT ![w] = "marked"]
    /\ retired' = IF RetiresFirst THEN Retire(w) ELSE retired
    /\ UNCHANGED <<rkey, regions, device, responders, initiator, packets, toOwner, toInitiator>>

HasRegion(w) == rkey[w] # None /\ regions[rkey[w]] = w

Deregister(w) ==
    /\ window[w] \in {"marked", "revoked"} /\ HasRegion(w)
    /\ regions' = [regions EXCEPT ![rkey[w]] = None]
    /\ UNCHANGED <<window, rkey, retired, device, responders, initiator, packets, toOwner, toInitiator>>

\* revoke() returns.
EndRevoke(w) ==
    /\ window[w] = "marked"
    /\ Keeps("a region is deregistered before revoke returns") => ~HasRegion(w)
    /\ window' = [window EXCEPT ![w] = "revoked"]
    /\ retired' = IF RetiresFirst THEN retired ELSE Retire(w)
    /\ toInitiator' = Append(toInitiator, [is |-> "REVOKED", window |-> w])
    /\ UNCHANGED <<rkey, regions, device, responders, initiator, packets, toOwner>>

(* The owner handles messages. *)

Answer(i, message) ==
    /\ toOwner' = Without(toOwner, i)
    /\ toInitiator' = Append(toInitiator, message)

HandleOpen(i) ==
    /\ toOwner[i].is = "OPEN"
    /\ LET opens == Guard = "end" /\ Keeps("no responder is made while a key is retired") => retired = {}
       IN /\ responder' = [responder EXCEPT ![toOwner[i].qp] = IF opens THEN "ready" ELSE "error"]
          /\ Answer(i, [is |-> IF opens THEN "OPENED" ELSE "CLOSED"])
    /\ UNCHANGED <<expected, owner, device, initiator, packets>>

HandleClose(i) ==
    /\ toOwner[i].is = "CLOSE"
    /\ responder' = [responder EXCEPT ![toOwner[i].qp] =
        IF Keeps("CLOSED is sent after the responder is in ERR") THEN "error" ELSE "ending"]
    /\ Answer(i, [is |-> "CLOSED"])
    /\ UNCHANGED <<expected, owner, device, initiator, packets>>

EndResponder(q) ==
    /\ responder[q] = "ending"
    /\ responder' = [responder EXCEPT ![q] = "error"]
    /\ UNCHANGED <<expected, owner, device, initiator, packets, toOwner, toInitiator>>

HandleAsk(i) ==
    /\ toOwner[i].is = "ASK"
    /\ LET o == toOwner[i].op
           w == op[o].window
           found == window[w] = "offered" \/ ~Keeps("messages find the table")
       IN /\ IF found THEN Perform(o, w) ELSE UNCHANGED device
          /\ Answer(i, [is |-> IF found THEN "DONE" ELSE "REFUSED", op |-> o])
    /\ UNCHANGED <<owner, responders, initiator, packets>>

HandleEnded(i) ==
    /\ toOwner[i].is = "ENDED"
    /\ LET r == rkey[toOwner[i].window]
       IN /\ retired' = retired \ {r}
          /\ regions' = IF r # None /\ regions[r] = Dud THEN [regions EXCEPT ![r] = None] ELSE regions
    /\ toOwner' = Without(toOwner, i)
    /\ UNCHANGED <<window, rkey, device, responders, initiator, packets, toInitiator>>

(* The responder's device *)

Accepts(q, packet) ==
    /\ responder[q] \in {"ready", "ending"}
    /\ \/ packet.qp = q
       \/ ~Keeps("packets of an earlier queue pair are dropped") /\ packet.qp < q

Target(packet) ==
    LET found == regions[packet.rkey]
    IN CASE found = Dud /\ Keeps("regions that are not offered have no remote access") -> None
         [] Guard = "fresh" /\ found # op[packet.op].window -> None
         [] OTHER -> found

Execute(q, packet) ==
    /\ Accepts(q, packet) /\ packet.psn = expected[q]
    /\ IF Target(packet) = None
       THEN responder' = [responder EXCEPT ![q] = "error"] /\ UNCHANGED <<expected, device>>
       ELSE /\ IF Target(packet) = Dud THEN UNCHANGED device ELSE Perform(packet.op, Target(packet))
            /\ expected' = [expected EXCEPT ![q] = @ + 1]
            /\ UNCHANGED responder
    /\ UNCHANGED <<owner, initiator, packets, toOwner, toInitiator>>

\* A responder reads again for a repeated READ. The initiator drops the bytes unless it waits for
\* them.
ReadAgain(q, packet) ==
    /\ Accepts(q, packet) /\ packet.psn < expected[q]
    /\ Target(packet) # Dud
    /\ LET o == packet.op
       IN op[o].kind = "get" /\ op[o].state = "posted" /\ op[o].qp = q
    /\ IF Target(packet) = None
       THEN responder' = [responder EXCEPT ![q] = "error"] /\ UNCHANGED <<expected, device>>
       ELSE Perform(packet.op, Target(packet)) /\ UNCHANGED responders
    /\ UNCHANGED <<owner, initiator, packets, toOwner, toInitiator>>

(* The initiator begins operations. Each key reaches it by a channel of the program, at any time. *)

HasKey(w) ==
    /\ window[w] \notin {"none", "registered"}
    /\ Keeps("keys of revoked windows are refused") => w \notin refused

Post(o, operation) ==
    LET psn == Cardinality({packet \in packets : packet.qp = made}) + 1
    IN /\ op' = [op EXCEPT ![o] = [operation EXCEPT !.state = "posted", !.qp = made, !.psn = psn]]
       /\ packets' = packets \cup
            {[qp |-> made, psn |-> psn, op |-> o, rkey |-> rkey[operation.window]]}
       /\ UNCHANGED toOwner

Ask(o, operation) ==
    /\ op' = [op EXCEPT ![o] = [operation EXCEPT !.state = "asked"]]
    /\ toOwner' = Append(toOwner, [is |-> "ASK", op |-> o])
    /\ UNCHANGED packets

\* The device performs all atomic operations on a window that has an rkey, or the processor those
\* on a window without one.
Begin(o, kind, w) ==
    /\ \A other \in 1..Operations : op[other].state = "unused" <=> other >= o
    /\ HasKey(w)
    /\ LET before == {other \in 1..Operations :
                IsOver(other) /\ op[other].kind \in Changes /\ op[other].window = w}
           operation == [Unused EXCEPT !.kind = kind, !.window = w,
                         !.behind = IF kind = "put" THEN before ELSE {}]
       IN \/ qp = "ready" /\ rkey[w] # None /\ Post(o, operation)
          \/ /\ Keeps("new operations wait for CLOSED") => qp \notin {"error", "closing"}
             /\ kind = "add" => rkey[w] = None
             /\ Ask(o, operation)
    /\ UNCHANGED <<owner, device, responders, qp, made, refused, ended, toInitiator>>

Complete(o) ==
    /\ qp = "ready" /\ op[o].state = "posted" /\ op[o].psn < expected[made]
    /\ \A other \in 1..Operations : op[other].state = "posted" => op[other].psn >= op[o].psn
    /\ op' = [op EXCEPT ![o].state = "done"]
    /\ UNCHANGED <<owner, device, responders, qp, made, refused, ended, packets, toOwner, toInitiator>>

(* A queue pair of the initiator *)

Open ==
    /\ qp = "none" /\ made < QueuePairs
    /\ qp' = "opening" /\ made' = made + 1
    /\ toOwner' = Append(toOwner, [is |-> "OPEN", qp |-> made'])
    /\ UNCHANGED <<owner, device, responders, op, refused, ended, packets, toInitiator>>

AfterFlush(kind) ==
    IF kind = "add" /\ Keeps("atomics are not repeated") THEN "unknown" ELSE "flushed"

\* An error, or a deadline. The completions of all operations have been taken.
Fail ==
    /\ qp = "ready" /\ \E o \in 1..Operations : op[o].state = "posted"
    /\ qp' = "error"
    /\ op' = [o \in 1..Operations |->
        IF op[o].state = "posted" THEN [op[o] EXCEPT !.state = AfterFlush(op[o].kind)] ELSE op[o]]
    /\ UNCHANGED <<owner, device, responders, made, refused, ended, packets, toOwner, toInitiator>>

\* The call of the program ends at its deadline.
GiveUp(o) ==
    /\ op[o].state = "flushed" /\ qp \in {"error", "closing"}
    /\ op' = [op EXCEPT ![o].state = "unknown"]
    /\ UNCHANGED <<owner, device, responders, qp, made, refused, ended, packets, toOwner, toInitiator>>

Close ==
    /\ qp = "error" /\ qp' = "closing"
    /\ toOwner' = Append(toOwner, [is |-> "CLOSE", qp |-> made])
    /\ UNCHANGED <<owner, device, responders, made, op, refused, ended, packets, toInitiator>>

Repeat(o) ==
    /\ \/ op[o].state = "flushed"
       \/ /\ ~Keeps("operations that were given up are not repeated")
          /\ op[o].state = "unknown" /\ op[o].kind = "put" /\ op[o].qp # 0
    /\ Keeps("repeats wait for CLOSED") => qp \notin {"error", "closing"}
    /\ LET w == op[o].window
       IN \/ w \in refused /\ Keeps("operations on revoked windows end")
             /\ op' = [op EXCEPT ![o].state = "refused"] /\ UNCHANGED <<packets, toOwner>>
          \/ w \notin refused /\ (op[o].kind = "add" => rkey[w] = None) /\ Ask(o, op[o])
          \/ w \notin refused /\ qp = "ready" /\ Post(o, op[o])
    /\ UNCHANGED <<owner, device, responders, qp, made, refused, ended, toInitiator>>

(* The initiator handles messages. *)

Handle(i) ==
    LET message == toInitiator[i]
    IN /\ toInitiator' = Without(toInitiator, i)
       /\ qp' = CASE message.is = "OPENED" -> "ready"
                  [] message.is = "CLOSED" -> "none"
                  [] OTHER -> qp
       /\ op' = CASE message.is = "DONE" -> [op EXCEPT ![message.op].state = "done"]
                  [] message.is = "REFUSED" -> [op EXCEPT ![message.op].state = "refused"]
                  [] OTHER -> op
       /\ refused' = IF message.is = "REVOKED" THEN refused \cup {message.window} ELSE refused
       /\ UNCHANGED <<owner, device, responders, made, ended, packets, toOwner>>

End(w) ==
    /\ w \in refused \ ended
    /\ \A o \in 1..Operations : op[o].window = w =>
        /\ Keeps("ENDED waits for operations") => ~UnderWay(o)
        /\ Keeps("ENDED waits for operations") /\ Keeps("ENDED waits for CLOSED") => ~MayArrive(o)
    /\ ended' = ended \cup {w}
    /\ toOwner' = Append(toOwner, [is |-> "ENDED", window |-> w])
    /\ UNCHANGED <<owner, device, responders, qp, made, op, refused, packets, toInitiator>>

(* All of it *)

\* What the two sides do without a new call of a program, and without a packet that arrives.
Progress ==
    \/ \E w \in 1..Windows : RegisterAgain(w) \/ Deregister(w) \/ EndRevoke(w) \/ End(w)
    \/ \E w \in 1..Windows : window[w] = "registered" /\ Offer(w)
    \/ \E i \in Indices(toOwner) : HandleOpen(i) \/ HandleClose(i) \/ HandleAsk(i) \/ HandleEnded(i)
    \/ \E i \in Indices(toInitiator) : Handle(i)
    \/ \E q \in 1..QueuePairs : EndResponder(q)
    \/ \E o \in 1..Operations : Complete(o) \/ Repeat(o)
    \/ Fail
    \/ Close

Next ==
    \/ Progress
    \/ \E w \in 1..Windows : (\E r \in 1..Keys : Register(w, r)) \/ Offer(w) \/ Write(w) \/ BeginRevoke(w)
    \/ \E o \in 1..Operations, kind \in Kinds, w \in 1..Windows : Begin(o, kind, w)
    \/ \E q \in 1..QueuePairs, packet \in packets : Execute(q, packet) \/ ReadAgain(q, packet)
    \/ \E o \in 1..Operations : GiveUp(o)
    \/ Open

Spec == Init /\ [][Next]_vars /\ WF_vars(Progress)

(* Invariants *)

NothingAfterRevoke == "after revoke" \notin harm

NoOtherWindow == "another window" \notin harm

\* A put that is done replaces, for ever, what was changed by operations that had ended when it
\* began. What the owner's program wrote replaces what was changed by those that were done.
NoOldValue ==
    /\ \A o \in 1..Operations : op[o].kind = "put" /\ op[o].state = "done" =>
        memory[op[o].window] \notin op[o].behind
    /\ \A w \in 1..Windows : memory[w] \notin covered[w]

AtMostOnce == \A o \in 1..Operations : op[o].kind = "add" => performed[o] <= 1

DoneIsPerformed == \A o \in 1..Operations : op[o].state = "done" => performed[o] >= 1

IsAtRest ==
    /\ \A o \in 1..Operations : ~UnderWay(o)
    /\ retired = {}
    /\ qp \notin {"error", "closing", "opening"}
NeverStuck == IsAtRest \/ ENABLED Progress

(* States are the same if only this differs: the order of messages that are *)
(* handled in any order, what a responder in ERR would have accepted, and   *)
(* where an operation was that has ended.                                   *)
Messages(channel) == IF Ordered THEN channel ELSE {channel[i] : i \in DOMAIN channel}
IsDead(q) == responder[q] = "error" /\ (q < made \/ qp = "none")
View == <<
    owner, device, responder, qp, made, refused, ended,
    [q \in 1..QueuePairs |-> IF IsDead(q) THEN 0 ELSE expected[q]],
    IF Keeps("packets of an earlier queue pair are dropped")
    THEN {packet \in packets : ~IsDead(packet.qp)} ELSE packets,
    [o \in 1..Operations |-> IF MayArrive(o) THEN op[o]
                              ELSE [op[o] EXCEPT !.qp = IF @ = 0 THEN 0 ELSE 1, !.psn = 0]],
    Messages(toOwner), Messages(toInitiator)>>

(* Property: the sides come to rest again and again. *)
ComesToRest == []<>IsAtRest
=============================================================================
