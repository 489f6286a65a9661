//! Any bytes are read as connection data or refused; what was read is written as the same data.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pmd_verbs::connect::Hello;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hello) = Hello::decode(bytes) {
        let again = hello.encode();
        assert_eq!(Hello::decode(&again).expect("it was just written"), hello);
    }
});
