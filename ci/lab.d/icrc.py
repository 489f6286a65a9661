#!/usr/bin/env python3
"""icrc.py PCAP: the ICRC of every RoCEv2 packet in a capture, by nothing but zlib and the definition (IBTA 1.4, annex A17):
CRC-32 over eight bytes of ones, and the packet from its IP header on, with what routers change as ones."""
import struct
import sys
import zlib


def frames(data):
    order = "<" if data[:4] == b"\xd4\xc3\xb2\xa1" else ">"
    at = 24
    while at + 16 <= len(data):
        (length,) = struct.unpack(order + "I", data[at + 8 : at + 12])
        yield data[at + 16 : at + 16 + length]
        at += 16 + length


def datagram(frame):
    """The IP packet, the length of its header, and where a router writes."""
    kind, ip = frame[12:14], frame[14:]
    if kind == b"\x08\x00" and ip[9] == 17:
        return bytearray(ip[: struct.unpack(">H", ip[2:4])[0]]), (ip[0] & 15) * 4, (1, 8, 10, 11)
    if kind == b"\x86\xdd" and ip[6] == 17:
        packet = bytearray(ip[: 40 + struct.unpack(">H", ip[4:6])[0]])
        packet[0] |= 0x0F
        return packet, 40, (1, 2, 3, 7)
    return None


def main(path):
    seen = wrong = 0
    with open(path, "rb") as file:
        data = file.read()
    for frame in frames(data):
        found = datagram(frame)
        if not found:
            continue
        packet, header, variant = found
        if struct.unpack(">H", packet[header + 2 : header + 4])[0] != 4791:
            continue
        # The UDP checksum, and the byte of the BTH that marks congestion.
        for at in (*variant, header + 6, header + 7, header + 12):
            packet[at] = 0xFF
        seen += 1
        wrong += struct.pack("<I", zlib.crc32(b"\xff" * 8 + packet[:-4])) != bytes(packet[-4:])
    print(f"{seen} packets, {wrong} with a wrong ICRC")
    return 0 if seen and not wrong else 1


sys.exit(main(sys.argv[1]))
