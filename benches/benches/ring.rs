//! Records through a single-producer single-consumer ring in shared memory.

use std::sync::Arc;

use anyhow::Result;
use criterion::{Criterion, Throughput};
use pmd_mem::limits::LINE_PAIR;
use pmd_mem::{Cursor, PeerWord, Segment, Word};

const SLOTS: u64 = 256;
/// Bytes of a record.
const RECORD: usize = 64;
const STRIDE: u64 = RECORD as u64;
/// Where the records begin, after the two positions.
const RECORDS_AT: u64 = 2 * LINE_PAIR;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("ring");
    for batch in [1, 32] {
        let mut ring = Ring::new()?;
        group.throughput(Throughput::Elements(batch));
        group.bench_function(format!("push and pop {batch} of {RECORD} b"), |bencher| {
            bencher.iter(|| ring.push_and_pop(batch).expect("both sides are honest"));
        });
    }
    Ok(())
}

/// Both sides, for one thread.
struct Ring {
    memory: Arc<Segment>,
    producer: Cursor<Word, PeerWord>,
    consumer: Cursor<Word, PeerWord>,
    record: [u8; RECORD],
}

impl Ring {
    fn new() -> Result<Self> {
        let memory = Arc::new(Segment::private(RECORDS_AT + SLOTS * STRIDE)?);
        let word = |at| Word::new(&memory, at);
        let peer = |at| PeerWord::new(&memory, at);
        Ok(Self {
            producer: Cursor::producer(word(0)?, peer(LINE_PAIR)?, SLOTS),
            consumer: Cursor::consumer(word(LINE_PAIR)?, peer(0)?, SLOTS),
            record: [7; RECORD],
            memory,
        })
    }

    fn push_and_pop(&mut self, batch: u64) -> Result<()> {
        let Self { memory, producer, consumer, record } = self;
        let free = producer.available(batch)?;
        for ahead in 0..batch.min(free) {
            memory.write_at(RECORDS_AT + producer.slot(ahead) * STRIDE, record)?;
        }
        producer.advance(batch);
        producer.publish();
        let filled = consumer.available(batch)?;
        for ahead in 0..filled {
            memory.read_at(RECORDS_AT + consumer.slot(ahead) * STRIDE, record)?;
        }
        consumer.advance(filled);
        consumer.publish();
        Ok(())
    }
}
