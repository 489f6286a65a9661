//! Every message against anything: what is written is read back, and nothing makes the parser panic.

use proptest::collection::vec;
use proptest::prelude::*;

use pmd_roce::cm::limits::MAD_LEN;
use pmd_roce::cm::message::{
    Answered, Drep, Dreq, Message, Mra, Rej, RejectInfo, Rep, Req, RequestPath, Rtu, ServiceType,
    SidrRep, SidrReq, SidrStatus,
};
use pmd_roce::cm::{MadError, PrivateData, RejectReason, ServiceId};
use pmd_roce::ids::{Gid, Psn, Qpn};
use pmd_roce::wire::Pkey;

/// Private data that fills its field.
fn private_data(len: usize) -> impl Strategy<Value = PrivateData> {
    vec(any::<u8>(), len).prop_map(move |bytes| PrivateData::new(&bytes, len, "test").unwrap())
}

fn path() -> impl Strategy<Value = RequestPath> {
    (any::<[u16; 2]>(), any::<[[u8; 16]; 2]>(), any::<u32>(), any::<[u8; 5]>(), any::<bool>())
        .prop_map(|([local_lid, remote_lid], [local, remote], label, bytes, subnet_local)| {
            let [packet_rate, traffic_class, hop_limit, sl, ack_timeout] = bytes;
            RequestPath {
                local_lid,
                remote_lid,
                local_gid: Gid(local),
                remote_gid: Gid(remote),
                flow_label: label >> 12,
                packet_rate: packet_rate >> 2,
                traffic_class,
                hop_limit,
                sl: sl >> 4,
                subnet_local,
                ack_timeout: ack_timeout >> 3,
            }
        })
}

fn service_type() -> impl Strategy<Value = ServiceType> {
    let unknown = (0..8_u8).prop_filter("XRC", |extended| *extended != 1);
    prop_oneof![
        Just(ServiceType::Rc),
        Just(ServiceType::Uc),
        Just(ServiceType::Rd),
        Just(ServiceType::Xrc),
        unknown.prop_map(ServiceType::Unknown),
    ]
}

fn req() -> impl Strategy<Value = Message> {
    let alternate = proptest::option::of(path().prop_filter("a LID", |path| path.local_lid != 0));
    let paths = (path(), alternate);
    (
        any::<[u32; 4]>(),
        any::<[u64; 2]>(),
        any::<[u8; 8]>(),
        any::<[bool; 2]>(),
        any::<u16>(),
        paths,
        (service_type(), private_data(92)),
    )
        .prop_map(
            |(
                [id, qkey, qpn, psn],
                [service, guid],
                bytes,
                [flow_control, srq],
                pkey,
                (primary, alternate),
                (service_type, private_data),
            )| {
                let [rr, depth, remote, local, retry, mtu, rnr, retries] = bytes;
                Req {
                    local_comm_id: id,
                    service: ServiceId(service),
                    local_ca_guid: guid,
                    local_qkey: qkey,
                    local_qpn: Qpn::new(qpn),
                    responder_resources: rr,
                    initiator_depth: depth,
                    remote_response_timeout: remote >> 3,
                    service_type,
                    flow_control,
                    starting_psn: Psn::new(psn),
                    local_response_timeout: local >> 3,
                    retry_count: retry >> 5,
                    pkey: Pkey(pkey),
                    path_mtu_code: mtu >> 4,
                    rnr_retry_count: rnr >> 5,
                    max_cm_retries: retries >> 4,
                    srq,
                    primary,
                    alternate,
                    private_data,
                }
                .into()
            },
        )
}

fn rep() -> impl Strategy<Value = Message> {
    (any::<[u32; 6]>(), any::<u64>(), any::<[u8; 5]>(), any::<[bool; 2]>(), private_data(196))
        .prop_map(|(words, guid, bytes, [flow_control, srq], private_data)| {
            let [local_comm_id, remote_comm_id, local_qkey, qpn, eecn, psn] = words;
            let [responder_resources, initiator_depth, delay, failover, rnr] = bytes;
            Rep {
                local_comm_id,
                remote_comm_id,
                local_qkey,
                local_qpn: Qpn::new(qpn),
                local_eecn: eecn >> 8,
                starting_psn: Psn::new(psn),
                responder_resources,
                initiator_depth,
                target_ack_delay: delay >> 3,
                failover: failover >> 6,
                flow_control,
                rnr_retry_count: rnr >> 5,
                srq,
                local_ca_guid: guid,
                private_data,
            }
            .into()
        })
}

fn answered() -> impl Strategy<Value = Answered> {
    proptest::sample::select(vec![
        Answered::Req,
        Answered::Rep,
        Answered::Other,
        Answered::Reserved,
    ])
}

fn message() -> impl Strategy<Value = Message> {
    let ids = any::<[u32; 2]>;
    let mra = (ids(), answered(), 0..32_u8, private_data(222)).prop_map(
        |([local_comm_id, remote_comm_id], message, service_timeout, private_data)| {
            Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data }.into()
        },
    );
    let rej = (ids(), answered(), any::<u16>(), vec(any::<u8>(), 0..=72), private_data(148))
        .prop_map(|([local_comm_id, remote_comm_id], message, reason, info, private_data)| {
            let (reason, info) = (RejectReason(reason), RejectInfo::new(&info));
            Rej { local_comm_id, remote_comm_id, message, reason, info, private_data }.into()
        });
    let rtu = (ids(), private_data(224)).prop_map(|([local_comm_id, remote_comm_id], data)| {
        Rtu { local_comm_id, remote_comm_id, private_data: data }.into()
    });
    let dreq = (ids(), any::<u32>(), private_data(220)).prop_map(
        |([local_comm_id, remote_comm_id], qpn, private_data)| {
            let remote_qpn = Qpn::new(qpn);
            Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data }.into()
        },
    );
    let drep = (ids(), private_data(224)).prop_map(|([local_comm_id, remote_comm_id], data)| {
        Drep { local_comm_id, remote_comm_id, private_data: data }.into()
    });
    let sidr_req = (any::<u32>(), any::<u16>(), any::<u64>(), private_data(216)).prop_map(
        |(request_id, pkey, service, private_data)| {
            let (pkey, service) = (Pkey(pkey), ServiceId(service));
            SidrReq { request_id, pkey, service, private_data }.into()
        },
    );
    let sidr_rep = (any::<[u32; 3]>(), any::<u8>(), any::<u64>(), private_data(136)).prop_map(
        |([request_id, qpn, qkey], status, service, private_data)| {
            let (status, service) = (SidrStatus(status), ServiceId(service));
            let qpn = Qpn::new(qpn);
            SidrRep { request_id, status, qpn, service, qkey, private_data }.into()
        },
    );
    prop_oneof![req(), rep(), mra, rej, rtu, dreq, drep, sidr_req, sidr_rep]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(tid in any::<u64>(), message in message()) {
        let mad = message.emit(tid);
        prop_assert_eq!(Message::parse(&mad), Ok((tid, message)));
        // Shorter or longer, it is none.
        prop_assert_eq!(Message::parse(&mad[..255]), Err(MadError::Length(255)));
        let longer = [&mad[..], &[0]].concat();
        prop_assert_eq!(Message::parse(&longer), Err(MadError::Length(257)));
    }

    /// Any bytes behind a header that promises a message are one; what was read is written as the same.
    #[test]
    fn what_is_read_is_written_back(
        attribute in 0x0f_u8..=0x1b,
        data in vec(any::<u8>(), MAD_LEN - 24),
    ) {
        let mut mad = vec![1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, attribute, 0, 0, 0, 0, 0, 0];
        mad.extend(data);
        match Message::parse(&mad) {
            Ok((tid, message)) => {
                prop_assert_eq!(tid, 0x0102_0304_0506_0708);
                prop_assert_eq!(message.attribute_id(), attribute.into());
                prop_assert_eq!(Message::parse(&message.emit(tid)), Ok((tid, message)));
            }
            Err(error) => {
                prop_assert_eq!(error, MadError::Attribute(attribute.into()));
                prop_assert!(!(0x10..=0x18).contains(&attribute));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        if let Ok((tid, message)) = Message::parse(&bytes) {
            prop_assert_eq!(Message::parse(&message.emit(tid)), Ok((tid, message)));
        }
    }
}

/// Every message in the traces of the kernel's connection manager is written again, byte for byte.
#[test]
fn the_kernels_messages_are_written_again() {
    let mut count = 0;
    for (_, mad) in super::golden::mads() {
        let (tid, message) = Message::parse(&mad).unwrap();
        assert_eq!(message.emit(tid)[..], mad, "{}", message.name());
        count += 1;
    }
    assert_eq!(count, 87);
}
