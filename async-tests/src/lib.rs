//! Nothing: the tests of sideway and trespass in async runtimes are in `tests`.
