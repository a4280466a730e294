//! CQL from text to operators: parser, checker, optimizer, placement and the delta engine.
