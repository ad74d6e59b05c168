//! Nothing: the tests of trespass in async runtimes are in `tests`.
