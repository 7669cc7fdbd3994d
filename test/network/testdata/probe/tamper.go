package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tampers are what a process with NET_ADMIN does to the network policy.
var tampers = map[string]func() error{
	"nothing": func() error { return nil },
	"delete-table": func() error {
		return rules(func(c *nftables.Conn, t *nftables.Table) { c.DelTable(t) })
	},
	"flush-table": func() error {
		return rules(func(c *nftables.Conn, t *nftables.Table) { c.FlushTable(t) })
	},
	"accept-in-table": func() error {
		return rules(func(c *nftables.Conn, t *nftables.Table) {
			c.InsertRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: "out"}, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
		})
	},
	"table": func() error {
		return rules(func(c *nftables.Conn, _ *nftables.Table) {
			t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "mine"})
			for hook, at := range map[string]*nftables.ChainHook{"o": nftables.ChainHookOutput, "p": nftables.ChainHookPostrouting} {
				all := nftables.ChainPolicyAccept
				c.AddChain(&nftables.Chain{Table: t, Name: hook, Type: nftables.ChainTypeFilter, Hooknum: at, Priority: nftables.ChainPriorityRaw, Policy: &all})
			}
		})
	},
	"link": func() error {
		name := attribute(unix.IFLA_IFNAME, append([]byte("mine"), 0))
		kind := nested(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("veth")))
		return route(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, make([]byte, unix.SizeofIfInfomsg), name, kind)
	},
	"link-down": func() error { return flags(func(f uint16) uint16 { return f &^ unix.IFF_UP }) },
	"link-flap": func() error { // by ioctl, which leaves no trace of who did it
		return errors.Join(flags(func(f uint16) uint16 { return f &^ unix.IFF_UP }), flags(func(f uint16) uint16 { return f | unix.IFF_UP }))
	},
	"address": func() error {
		a := []byte{198, 51, 100, 250}
		header := append([]byte{unix.AF_INET, 24, 0, 0}, native(device())...)
		return route(unix.RTM_NEWADDR, unix.NLM_F_CREATE, header, attribute(unix.IFA_LOCAL, a), attribute(unix.IFA_ADDRESS, a))
	},
	"route": func() error {
		header := []byte{unix.AF_INET, 24, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_KERNEL, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0}
		return route(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, header, attribute(unix.RTA_DST, []byte{203, 0, 113, 0}), attribute(unix.RTA_OIF, native(device())))
	},
	"rule": func() error {
		header := []byte{unix.AF_INET, 0, 0, 0, 77, 0, 0, 1, 0, 0, 0, 0} // to table 77
		return route(unix.RTM_NEWRULE, unix.NLM_F_CREATE, header, attribute(unix.FRA_PRIORITY, native(77)))
	},
	"queue": func() error {
		header := slices.Concat(make([]byte, 4), native(device()), native(0xffff0000), native(0xfffffff1), make([]byte, 4)) // clsact
		return route(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header, attribute(unix.TCA_KIND, append([]byte("clsact"), 0)))
	},
}

// tamper does one of them, says what became of it, and tries to get out for a while. With
// the kind "mark" its packets have the mark of PID 1's.
func tamper(kind, addr string) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		log.Fatal(err)
	}
	mark := 0
	if kind == "mark" {
		mark, err = markOfPID1()
	} else {
		err = tampers[kind]()
	}
	if err != nil {
		fmt.Printf("refused: %v\n", err)
	} else {
		fmt.Println("done")
	}
	for range 50 {
		for _, network := range []string{"tcp", "udp"} {
			d := net.Dialer{Timeout: 20 * time.Millisecond, Control: onSocket(func(fd int) error {
				if mark == 0 {
					return nil
				}
				return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark)
			})}
			if c, err := d.Dial(network, to.String()); err == nil {
				c.Write([]byte("out\n"))
				c.Close()
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// rules changes the rules, given the table of the policy.
func rules(change func(*nftables.Conn, *nftables.Table)) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil || len(tables) != 1 {
		return fmt.Errorf("%d tables, %w", len(tables), err)
	}
	change(c, tables[0])
	return c.Flush()
}

// markOfPID1 finds in the rules the mark that lets packets of PID 1 out.
func markOfPID1() (mark int, err error) {
	c, err := nftables.New()
	if err != nil {
		return 0, err
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return 0, err
	}
	for _, chain := range chains {
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return 0, err
		}
		for _, r := range rules {
			for i, e := range r.Exprs {
				if m, ok := e.(*expr.Meta); ok && m.Key == expr.MetaKeyMARK && i+1 < len(r.Exprs) {
					return int(int32(binary.NativeEndian.Uint32(r.Exprs[i+1].(*expr.Cmp).Data))), nil
				}
			}
		}
	}
	return 0, errors.New("no rule has a mark")
}

func route(kind uint16, flags uint16, header []byte, attrs ...[]byte) error {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.Acknowledge | netlink.HeaderFlags(flags)},
		Data:   append(header, slices.Concat(attrs...)...),
	})
	return err
}

func attribute(kind uint16, data []byte) []byte {
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: kind, Data: data}})
	if err != nil {
		log.Fatal(err)
	}
	return b
}

func nested(kind uint16, data []byte) []byte { return attribute(kind|unix.NLA_F_NESTED, data) }

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func device() uint32 {
	dev, err := net.InterfaceByName("eth0")
	if err != nil {
		log.Fatal(err)
	}
	return uint32(dev.Index)
}

func flags(change func(uint16) uint16) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("eth0")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req)
	}
	if err != nil {
		return err
	}
	req.SetUint16(change(req.Uint16()))
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
