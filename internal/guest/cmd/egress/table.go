//go:build linux

package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Flags of a table (linux/netfilter/nf_tables.h). An owned table can be changed only through
// the socket that made it, and goes with that socket unless it persists.
const (
	tableOwner   = 2
	tablePersist = 4
)

// installTime bounds the kernel's answers to a transaction.
const installTime = 30 * time.Second

// kernelTable is the table with this process's rules, through the one socket that owns it.
//
// The kernel closes the files of a process before it kills the rest of its PID namespace. So
// a table that does not persist would be gone while processes inside still run, should PID 1
// be killed: in each of 15 trials their packets left. Where the kernel has only the flag of
// owners (5.12 to 6.8), the table is not owned either, and what others change is noticed by
// the watcher alone.
type kernelTable struct {
	conn *nftables.Conn
	sock *netlink.Conn // conn's socket
	port uint32        // the socket's, by which the kernel says who changed something

	mu         sync.Mutex
	flags      uint32
	made       int      // tables so far
	names      []string // those that may exist
	generation uint32   // of all rules, if nobody else changed any
	connected  int64    // through published ports, of the tables before
}

func openTable() (*kernelTable, error) {
	t := &kernelTable{flags: tableOwner | tablePersist}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		t.sock = c
		// A transaction is one message, and its answers come all at once.
		return errors.Join(c.SetWriteBuffer(2<<20), c.SetReadBuffer(2<<20))
	}))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t.conn = conn
	err = t.control(func(fd int) error {
		// Connected, it hears the kernel alone. Others with NET_ADMIN could answer for it.
		if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		addr, err := unix.Getsockname(fd)
		if at, ok := addr.(*unix.SockaddrNetlink); ok {
			t.port = at.Pid
		}
		return err
	})
	if err == nil {
		t.generation, err = t.readGeneration()
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return t, nil
}

// Close closes the socket. The rules stay.
func (t *kernelTable) Close() error { return t.conn.CloseLasting() }

func (t *kernelTable) control(f func(fd int) error) error {
	raw, err := t.sock.SyscallConn()
	if err != nil {
		return err
	}
	if ctlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); ctlErr != nil {
		return ctlErr
	}
	return err
}

// install replaces the ruleset that the kernel enforces, in one transaction: at any time it
// enforces the one or the other. After an error it may be either.
func (t *kernelTable) install(r *ruleset) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("nftables: %w", err)
		// An error leaves open whether the transaction was carried out.
		if now, err := t.readGeneration(); err == nil && now == t.generation+1 {
			t.generation = now
		}
	}()
	t.sock.SetDeadline(time.Now().Add(installTime))
	t.drain()
	// The new table is made by itself, since only a message of ours has the flags. It is
	// empty until the old ones go.
	t.made++
	name := fmt.Sprintf("%s-%d", filterTable, t.made)
	old := t.names
	counted := t.count()
	t.names = append(old[:len(old):len(old)], name)
	err = t.create(t.names)
	if t.flags != 0 && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)) {
		t.flags = 0
		err = t.create(t.names)
	}
	if err != nil {
		return err
	}
	b := &builder{conn: t.conn, table: inetTable(name)}
	for _, n := range old {
		t.conn.DelTable(inetTable(n))
	}
	building.Lock() // nftables numbers all sets of a program without a lock
	r.build(b)
	building.Unlock()
	if err := errors.Join(b.err, t.conn.Flush()); err != nil {
		return err
	}
	t.generation++
	t.names = []string{name}
	t.connected += counted
	return nil
}

// accepted returns how many connections have come through published ports.
func (t *kernelTable) accepted() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sock.SetDeadline(time.Now().Add(installTime))
	t.drain()
	return t.connected + t.count()
}

// count returns how many connections the counters of the present table have seen, and 0 if it
// can't be read.
func (t *kernelTable) count() (n int64) {
	if len(t.names) != 1 {
		return 0
	}
	table := inetTable(t.names[0])
	rules, err := t.conn.GetRules(table, &nftables.Chain{Table: table, Name: inputChain})
	if err != nil {
		return 0
	}
	for _, rule := range rules {
		for _, e := range rule.Exprs {
			if c, ok := e.(*expr.Counter); ok {
				n += int64(c.Packets)
			}
		}
	}
	return n
}

var building sync.Mutex

func inetTable(name string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
}

// create makes those of the tables that do not exist, at least one.
func (t *kernelTable) create(names []string) error {
	batch := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	messages := []netlink.Message{batch(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, name := range names {
		attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_TABLE_NAME, Data: []byte(name + "\x00")},
			{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, t.flags)},
		})
		if err != nil {
			return err
		}
		messages = append(messages, netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE, Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
			Data:   append(nfgen(unix.NFPROTO_INET), attrs...),
		})
	}
	if _, err := t.sock.SendMessages(append(messages, batch(unix.NFNL_MSG_BATCH_END))); err != nil {
		return err
	}
	var errs error
	for range names {
		_, err := t.sock.Receive()
		errs = errors.Join(errs, err)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOBUFS) {
			break // the kernel's only answer
		}
	}
	if errs == nil {
		t.generation++
	}
	return errs
}

// drain discards what is left of the answers to a transaction that failed.
func (t *kernelTable) drain() {
	t.control(func(fd int) error {
		for buf := make([]byte, 16); ; {
			if _, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT); err != nil && err != unix.ENOBUFS && err != unix.EINTR {
				return err
			}
		}
	})
}

// untouched returns an error if there may have been other transactions than this process's.
func (t *kernelTable) untouched() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, err := t.readGeneration()
	if err == nil && now != t.generation {
		err = errRules
	}
	return err
}

// readGeneration returns the number of the current generation of rules, in all tables.
func (t *kernelTable) readGeneration() (uint32, error) {
	t.drain()
	t.sock.SetDeadline(time.Now().Add(installTime))
	replies, err := t.sock.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   nfgen(unix.AF_UNSPEC),
	})
	if err != nil {
		return 0, err
	}
	for _, m := range replies {
		attrs, err := netlink.NewAttributeDecoder(m.Data[min(4, len(m.Data)):])
		if err != nil {
			return 0, err
		}
		attrs.ByteOrder = binary.BigEndian
		for attrs.Next() {
			if attrs.Type() == unix.NFTA_GEN_ID {
				return attrs.Uint32(), nil
			}
		}
	}
	return 0, errors.New("the kernel has no generation of rules")
}
