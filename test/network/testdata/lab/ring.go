package main

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is the memory in which the kernel puts the beginning of each packet. It has room for a
// flood, also where root is no user of the machine's: there a socket's own buffer is small.
type ring struct {
	fd     int
	frames []byte
	at     int
}

const (
	ringFrame = 256 // a header of the kernel's, those of IP and TCP, and more
	ringBlock = 64 << 10
	ringSize  = 16 << 20
	// ringAddress is where a frame has the packet's unix.RawSockaddrLinklayer.
	ringAddress = (unix.SizeofTpacket2Hdr + unix.TPACKET_ALIGNMENT - 1) / unix.TPACKET_ALIGNMENT * unix.TPACKET_ALIGNMENT
	// Values of a frame's status, see packet(7): whose it is.
	ringKernel, ringUser = 0, 1
)

func newRing() (*ring, error) {
	const all = unix.ETH_P_ALL
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // nothing yet
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return nil, err
	}
	size := unix.TpacketReq{Block_size: ringBlock, Block_nr: ringSize / ringBlock, Frame_size: ringFrame, Frame_nr: ringSize / ringFrame}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &size); err != nil {
		return nil, err
	}
	frames, err := unix.Mmap(fd, 0, ringSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &ring{fd: fd, frames: frames}, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all>>8 | all<<8&0xff00})
}

// next waits for a packet that arrives, and returns when the kernel had it and how it begins.
func (r *ring) next() (time.Time, []byte, error) {
	for {
		frame := r.frames[r.at:][:ringFrame]
		head := (*unix.Tpacket2Hdr)(unsafe.Pointer(&frame[0]))
		for atomic.LoadUint32(&head.Status)&ringUser == 0 {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, -1)
			if err != nil && err != unix.EINTR {
				return time.Time{}, nil, err
			}
		}
		from := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&frame[ringAddress]))
		outgoing := from.Pkttype == unix.PACKET_OUTGOING
		at, begin := time.Unix(int64(head.Sec), int64(head.Nsec)), append([]byte(nil), frame[head.Net:][:head.Snaplen]...)
		atomic.StoreUint32(&head.Status, ringKernel)
		r.at = (r.at + ringFrame) % ringSize
		if !outgoing {
			return at, begin, nil
		}
	}
}

// lost reports whether packets were lost since it was asked last.
func (r *ring) lost() (bool, error) {
	stats, err := unix.GetsockoptTpacketStats(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	return err == nil && stats.Drops > 0, err
}
