//! Headers by their words: the layout, both ways there, and what is no header.

use super::*;

fn record(kind: Kind) -> Record {
    Record {
        kind,
        dst: 0x02_4001,
        src: 0x04_8002,
        seq: 0xff_fffe,
        len: 0,
        imm: None,
        solicited: false,
        srqn: None,
    }
}

fn datagram() -> Datagram {
    Datagram {
        qkey: 0x1111_1111,
        src: [1; 16],
        dst: std::array::from_fn(|i| i.to_le_bytes()[0]),
        src_port: 0xc001,
        traffic_class: 8,
        hop_limit: 64,
    }
}

#[test]
fn headers_have_this_layout() {
    let header = Header {
        record: Record {
            len: 5,
            imm: Some([1, 2, 3, 4]),
            solicited: true,
            srqn: Some(9),
            ..record(Kind::Send)
        },
        body: Body::Inline,
    };
    let mut words = [0; HEADER_WORDS];
    words[..4].copy_from_slice(&[
        0x1102_4001_0000_0005,
        0x0480_02ff_fffe_0f00,
        0x0102_0304_0000_0000,
        9,
    ]);
    assert_eq!(header.encode(), words);
    assert_eq!(header.size(), 40);
    assert_eq!(Header::words(words[0], words[1]), 4);
    assert_eq!(Header::decode(words), Ok(header));
    assert_eq!(pad_word(24), 0xff00_0000_0000_0018);
    assert_eq!(entry(pad_word(24)), Entry::Pad(24));
    assert_eq!(entry(0), Entry::End);
    assert_eq!(entry(words[0]), Entry::Record);
}

#[test]
fn every_kind_survives_the_ring() {
    let bodies = |header: Record| match header.kind {
        kind if kind.is_send() => [Body::Inline, Body::Pull(1), Body::Pull(16)].to_vec(),
        _ => vec![Body::None],
    };
    let kinds = [
        record(Kind::Send),
        Record { imm: Some([9, 8, 7, 6]), ..record(Kind::Send) },
        record(Kind::Datagram(datagram())),
        Record { imm: Some([1; 4]), ..record(Kind::Datagram(datagram())) },
        Record { srqn: Some(0), ..record(Kind::Send) },
        record(Kind::SendInvalidate(0)),
        record(Kind::SendInvalidate(0xdead_be00)),
        Record { imm: Some([0; 4]), ..record(Kind::WriteImm) },
        record(Kind::Nak { syndrome: 0x62 }),
        record(Kind::SourceFault),
        record(Kind::Violation { access: true, syndrome: 0x62 }),
        record(Kind::Violation { access: false, syndrome: 0x61 }),
        record(Kind::Starved),
    ];
    for base in kinds {
        for body in bodies(base) {
            let len = if body == Body::None { 0 } else { 17 };
            let header = Header { record: Record { len, ..base }, body };
            let words = header.encode();
            assert_eq!(Header::words(words[0], words[1]) as u64 * 8, header.record.header_bytes());
            assert_eq!(Header::decode(words), Ok(header));
        }
    }
    // An empty SEND has no body, a WRITE with immediate a length without one.
    for (kind, imm, len) in [(Kind::Send, None, 0), (Kind::WriteImm, Some([0; 4]), 1 << 31)] {
        let header = Header { record: Record { imm, len, ..record(kind) }, body: Body::None };
        assert_eq!(Header::decode(header.encode()), Ok(header));
    }
}

/// The quick way of a plain record says and understands what the slow way does, and nothing else.
#[test]
fn both_ways_of_a_plain_record_agree() {
    for (solicited, len) in [(false, 1), (true, 8), (false, 257), (true, u32::MAX)] {
        let plain = Record { solicited, len, ..record(Kind::Send) };
        let header = Header { record: plain, body: Body::Pull(1) };
        let words = header.encode();
        let two = plain.two_words();
        assert_eq!([two.first, two.second], words[..2]);
        assert!(plain.is_plain() && is_pull(two.first));
        assert_eq!(header.size(), HEADER + PIECE);
        let mut read = record(Kind::Starved);
        assert!(two.decode(&mut read));
        assert_eq!(read, plain);
    }
    let mut understood = 0;
    for op in 0..=0xff_u8 {
        for flags in 0..=0xff_u8 {
            for (len, count) in [(0, 0), (8, 0), (8, 1), (8, 2), (0, 1)] {
                let mut words = [0; HEADER_WORDS];
                words[0] = first_word(op, 1, len);
                words[1] = second_word(2, 3, flags, count);
                let two = TwoWords { first: words[0], second: words[1] };
                let mut record = record(Kind::Starved);
                if is_pull(two.first) && two.decode(&mut record) {
                    understood += 1;
                    assert!(record.is_plain());
                    let body = Body::Pull(1);
                    assert_eq!(Header::decode(words), Ok(Header { record, body }));
                }
            }
        }
    }
    assert_eq!(understood, 2, "solicited or not");
}

/// Every op and flag byte: what is not written by this module is refused by name.
#[test]
fn garbage_is_refused_by_name() {
    let mut accepted = 0;
    for op in 1..=0xfe_u8 {
        for flags in 0..=0xff_u8 {
            for (len, count) in [(0, 0), (8, 0), (8, 1), (8, 16), (8, 17)] {
                let mut words = [0; HEADER_WORDS];
                words[0] = first_word(op, 1, len);
                words[1] = u64::from(flags) << 8 | count;
                words[2] = 0x55;
                match Header::decode(words) {
                    Ok(header) => {
                        accepted += 1;
                        // What was accepted says the same when this side writes it: no two spellings of a size.
                        let again = header.encode();
                        assert_eq!(
                            Header::words(again[0], again[1]),
                            Header::words(words[0], words[1])
                        );
                        assert_eq!(header.encode()[0], words[0]);
                    }
                    Err(Garbage::Op(o)) => assert_eq!(o, op),
                    Err(Garbage::Flags { op: o, flags: f }) => assert_eq!((o, f), (op, flags)),
                    Err(Garbage::Pieces) => {
                        assert!(op >> 4 == BODY_PULL && !(1..=16).contains(&count));
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    assert!(accepted > 0);
}

#[test]
fn pieces_survive_the_ring() {
    let piece = Piece { lkey: 0x0102_0304, pd: 7, addr: u64::MAX - 3, len: u32::MAX };
    assert_eq!(Piece::decode(piece.encode()), piece);
    assert_eq!(u64::try_from(size_of_val(&piece.encode())).unwrap(), PIECE);
}
