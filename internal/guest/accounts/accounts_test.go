package accounts

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func text(s string) func() io.ReadCloser {
	return func() io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
}

func TestResolve(t *testing.T) {
	t.Parallel()
	passwd := "\n# comment\nbroken\nroot:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n" +
		"1001:x:0:0::/root:\n42:x:7:7::/home/number:\n7777:x:42:43::/home/other:\nlead:x:0060:+61::/lead:\nbad:x:-1:0::/:\nhuge:x:99999999999:0::/:\nnohome:x:9:9:::\n:x:11:11::/:\nann:x:2:2::/second:\n"
	group := "root:x:0:\nstaff:x:50:ann,bob\nwheel:x:10:bob,ann\nann:x:1000:\nbad:x:x:ann\n77:x:78:\n"
	for _, tt := range []struct {
		spec string
		want User
		fail bool
	}{
		{spec: "", want: User{Groups: []uint32{0}, Name: "root", Home: "/root", Shell: "/bin/sh"}},
		{spec: "0", want: User{Groups: []uint32{0}, Name: "root", Home: "/root", Shell: "/bin/sh"}},
		{spec: "ann", want: User{UID: 1000, GID: 1000, Groups: []uint32{1000, 50, 10}, Name: "ann", Home: "/home/ann", Shell: "/bin/sh"}},
		{spec: "1000", want: User{UID: 1000, GID: 1000, Groups: []uint32{1000, 50, 10}, Name: "ann", Home: "/home/ann", Shell: "/bin/sh"}},
		{spec: "ann:", want: User{UID: 1000, GID: 1000, Groups: []uint32{1000, 50, 10}, Name: "ann", Home: "/home/ann", Shell: "/bin/sh"}},
		{spec: "ann:staff", want: User{UID: 1000, GID: 50, Groups: []uint32{50}, Name: "ann", Home: "/home/ann", Shell: "/bin/sh"}},
		{spec: "ann:51", want: User{UID: 1000, GID: 51, Groups: []uint32{51}, Name: "ann", Home: "/home/ann", Shell: "/bin/sh"}},
		{spec: "ann:77", want: User{UID: 1000, GID: 77, Groups: []uint32{77}, Name: "ann", Home: "/home/ann", Shell: "/bin/sh"}},
		{spec: "42", want: User{UID: 42, GID: 43, Groups: []uint32{43}, Name: "7777", Home: "/home/other"}},
		{spec: "7777", want: User{UID: 7777, Groups: []uint32{0}, Home: "/"}},
		{spec: "1001", want: User{UID: 1001, Groups: []uint32{0}, Home: "/"}},
		{spec: "1001:", want: User{UID: 1001, Groups: []uint32{0}, Home: "/"}},
		{spec: "1001:77", want: User{UID: 1001, GID: 77, Groups: []uint32{77}, Home: "/"}},
		{spec: "60", want: User{UID: 60, GID: 61, Groups: []uint32{61}, Name: "lead", Home: "/lead"}},
		{spec: "+042:+077", want: User{UID: 42, GID: 77, Groups: []uint32{77}, Name: "7777", Home: "/home/other"}},
		{spec: "2147483647:2147483647", want: User{UID: 1<<31 - 1, GID: 1<<31 - 1, Groups: []uint32{1<<31 - 1}, Home: "/"}},
		{spec: "nohome", want: User{UID: 9, GID: 9, Groups: []uint32{9}, Name: "nohome", Home: "/"}},
		{spec: "5555", want: User{UID: 5555, Groups: []uint32{0}, Home: "/"}},
		{spec: "5555:6", want: User{UID: 5555, GID: 6, Groups: []uint32{6}, Home: "/"}},
		{spec: ":50", want: User{GID: 50, Groups: []uint32{50}, Name: "root", Home: "/root", Shell: "/bin/sh"}},
		{spec: "bad", fail: true},
		{spec: "huge", fail: true},
		{spec: "nobody", fail: true},
		{spec: "ann:nogroup", fail: true},
		{spec: "-1", fail: true},
		{spec: "2147483648", fail: true},
		{spec: "0:2147483648", fail: true},
		{spec: "0:-1", fail: true},
		{spec: "99999999999999999999", fail: true},
		{spec: "1_0", fail: true},
		{spec: "4294967295", fail: true},
		{spec: "4294967296", fail: true},
		{spec: "0:4294967295", fail: true},
	} {
		got, err := Resolve(tt.spec, text(passwd), text(group))
		if (err != nil) != tt.fail {
			t.Errorf("%q: error %v", tt.spec, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" && !tt.fail {
			t.Errorf("%q (-want +got):\n%s", tt.spec, diff)
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("ann:staff", "ann:x:1:2::/home:\n", "staff:x:50:ann\n")
	f.Add("0", "::::::\n", ":::\n")
	f.Fuzz(func(t *testing.T, spec, passwd, group string) {
		id, err := Resolve(spec, text(passwd), text(group))
		if err != nil {
			return
		}
		if id.UID == 1<<32-1 || id.GID == 1<<32-1 || id.Home == "" {
			t.Errorf("%q: %+v", spec, id)
		}
		for _, g := range id.Groups {
			if g == 1<<32-1 {
				t.Errorf("%q: %+v", spec, id)
			}
		}
	})
}
