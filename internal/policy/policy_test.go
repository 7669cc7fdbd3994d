package policy_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

func parse(t testing.TB, text string) policy.Policy {
	t.Helper()
	p, err := policy.Parse(text)
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return p
}

func compile(t testing.TB, text string, protect ...string) *policy.Rules {
	t.Helper()
	var more []netip.Prefix
	for _, s := range protect {
		more = append(more, netip.MustParsePrefix(s))
	}
	r, err := parse(t, text).Compile(more...)
	if err != nil {
		t.Fatalf("Compile of %q: %v", text, err)
	}
	return r
}

// What a user writes comes out in one form, whatever order and case it had.
func TestTextHasOneForm(t *testing.T) {
	for in, want := range map[string]string{
		" deny-all ":                                           "deny-all",
		"allow-all":                                            "allow-all",
		"public-only":                                          "public-only",
		"allow=B.example.,a.Example,b.example":                 "allow=a.example,b.example",
		"allow=a.example allow=b.example":                      "allow=a.example,b.example",
		"allow=bücher.example,*.BÜCHER.example.":               "allow=*.xn--bcher-kva.example,xn--bcher-kva.example",
		"transform=A.example allow=a.example":                  "transform=a.example",
		"subnets.deny=10.0.0.1/24,10.0.1.0/24 allow=x.example": "allow=x.example subnets.deny=10.0.0.0/23",
		"subnets.allow=10.1.2.3":                               "subnets.allow=10.1.2.3/32",
		"subnets.allow=::ffff:10.1.2.3/128,fd00::1/64":         "subnets.allow=10.1.2.3/32,fd00::/64",
		"resolve-into=10.0.0.0/9,10.128.0.0/9 allow=*":         "allow=* resolve-into=10.0.0.0/8",
		"subnets.allow=0.0.0.0/1,128.0.0.0/1,::/0":             "subnets.allow=0.0.0.0/0,::/0",
	} {
		p, err := policy.Parse(in)
		if err != nil || p.String() != want {
			t.Errorf("Parse(%q) = %q, %v; want %q", in, p, err, want)
			continue
		}
		if again := parse(t, want); !reflect.DeepEqual(again, p) {
			t.Errorf("Parse(%q) = %#v, want %#v", want, again, p)
		}
		text, err := json.Marshal(p)
		var back policy.Policy
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || !reflect.DeepEqual(back, p) {
			t.Errorf("%q through JSON %s: %#v, %v", in, text, back, err)
		}
	}
}

// Every mistake is named, all of them at once.
func TestMistakesAreNamed(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("10.0.0.0/32,", policy.MaxEntries+1), ",")
	for in, want := range map[string][]string{
		"":                             {"empty"},
		"none":                         {`"none"`},
		"allow=":                       {"empty"},
		"allow=a..b":                   {`"a..b"`},
		"allow=-a.b,c-.d":              {`"-a.b"`, `"c-.d"`},
		"allow=a*.example,*b":          {`"a*.example"`, `"*b"`, "whole labels"},
		"allow=1.2.3.4,::1,0x7f.1,1.2": {`"1.2.3.4"`, `"::1"`, `"0x7f.1"`, `"1.2"`, "Subnets"},
		"allow=a.example/path":         {`"a.example/path"`},
		"allow=https://a.example":      {`"https://a.example"`},
		"allow=a.example:443":          {`"a.example:443"`},
		"allow=user@a.example":         {`"user@a.example"`},
		"allow=\u200dx.example":        {"domain name"},
		"allow=" + strings.Repeat("a", 64) + ".b":                   {"63"},
		"allow=" + strings.Repeat("abcdefg.", 32) + "example":       {"253"},
		"subnets.allow=10.0.0.0/33,10.0.0/8,fe80::1%eth0,x":         {`"10.0.0.0/33"`, `"10.0.0/8"`, `"fe80::1%eth0"`, `"x"`},
		"subnets.deny=::ffff:0.0.0.0/95":                            {"write two"},
		"subnets.allow=" + many:                                     {"1001", "1000"},
		"transform=*":                                               {"cannot be transformed"},
		"deny-all allow=a.example":                                  {`"deny-all"`},
		"allow=a.example;b.example":                                 {`"a.example;b.example"`},
		"allow=-a subnets.deny=y resolve-into=z subnets.allow=x q=": {`"-a"`, `"x"`, `"y"`, `"z"`, `"q="`},
	} {
		_, err := policy.Parse(in)
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("Parse(%.60q): %.300v, want %q in it", in, err, text)
			}
		}
	}
	for _, p := range []policy.Policy{
		{}, {Mode: "open"}, {Mode: policy.DenyAll, Allow: []policy.Name{{Pattern: "a.example"}}},
		{Mode: policy.Custom, ResolveInto: []netip.Prefix{{}}},
	} {
		if _, err := p.Canon(); err == nil {
			t.Errorf("Canon of %#v: no error", p)
		}
	}
	if p, err := (policy.Policy{Mode: policy.Custom}).Canon(); err != nil || p.Mode != policy.DenyAll {
		t.Errorf("a custom policy without lists is %v, %v; want deny-all", p, err)
	}
	names := make([]string, policy.MaxEntries)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d.%s.%s", strings.Repeat("a", 50), i, strings.Repeat("b", 60), strings.Repeat("c", 60))
	}
	if _, err := policy.Parse("allow=" + strings.Join(names, ",")); err == nil || !strings.Contains(err.Error(), "131072") {
		t.Errorf("a policy of %d long names: %v, want the bytes there may be", len(names), err)
	}
}

// A star is one or more labels at the beginning and one elsewhere; the
// name above is not in it; the most particular pattern counts; an address is no name.
func TestNames(t *testing.T) {
	r := compile(t, "allow=example.com,*.example.com,a.*.example.org,*.*.example.net,host transform=api.example.com,*.secret.example")
	for name, want := range map[string]string{
		"example.com":              "example.com",
		"EXAMPLE.com.":             "example.com",
		"a.example.com":            "*.example.com",
		"a.b.c.example.com":        "*.example.com",
		"api.example.com":          "api.example.com!",
		"x.api.example.com":        "*.example.com",
		"a.b.example.org":          "a.*.example.org",
		"a.b.c.example.org":        "",
		"a.example.org":            "",
		"b.a.example.org":          "",
		"a.example.net":            "",
		"a.b.example.net":          "*.*.example.net",
		"a.b.c.d.example.net":      "*.*.example.net",
		"secret.example":           "",
		"x.secret.example":         "*.secret.example!",
		"host":                     "host",
		"badexample.com":           "",
		"example.com.evil.example": "",
		"example.com\x00":          "",
		"exаmple.com":              "", // a Cyrillic letter
		"":                         "",
		".":                        "",
		"..example.com":            "",
		"example.com..":            "",
		"*.example.com":            "",
		"127.0.0.1":                "",
	} {
		got, ok := r.Name(name)
		text := got.Pattern
		if got.Transform {
			text += "!"
		}
		if ok != (want != "") || text != want {
			t.Errorf("Name(%q) = %q, %v; want %q", name, text, ok, want)
		}
	}
	all := compile(t, "allow=*")
	for name, want := range map[string]bool{
		"a.example": true, "x": true, "_sip._tcp.example": true,
		"1.2.3.4": false, "::1": false, "[::1]": false, "0x7f000001": false, "2130706433": false, "a.0x10": false, "a b": false, "a/b": false, "-a.b": false,
	} {
		if _, ok := all.Name(name); ok != want {
			t.Errorf("* allows %q: %v, want %v", name, ok, want)
		}
	}
	if _, ok := compile(t, "deny-all").Name("a.example"); ok {
		t.Error("deny-all allows a name")
	}
	if _, ok := compile(t, "subnets.allow=10.0.0.0/8").Name("a.example"); ok {
		t.Error("subnets alone allow a name")
	}
}

// Denied beats allowed, allowed beats protected, protected beats names,
// in both families and in every form of IPv6 that carries IPv4.
func TestAddresses(t *testing.T) {
	const custom = "allow=a.example subnets.allow=10.1.0.0/16,203.0.113.0/24,fd01::/32 subnets.deny=10.1.9.0/24,8.8.8.8,2001:db8::/32 resolve-into=10.2.0.0/16"
	for _, test := range []struct {
		policy, addr string
		want         policy.Verdict
		into         bool
	}{
		{custom, "93.184.216.34", policy.ByName, true},
		{custom, "2606:2800::1", policy.ByName, true},
		{custom, "8.8.8.8", policy.Denied, false},
		{custom, "::ffff:8.8.8.8", policy.Denied, false},
		{custom, "2001:db8::1", policy.Denied, false},
		{custom, "10.1.0.1", policy.Subnet, true},
		{custom, "10.1.9.1", policy.Denied, false},
		{custom, "10.2.0.1", policy.Protected, true},
		{custom, "10.3.0.1", policy.Protected, false},
		{custom, "fd01::1", policy.Subnet, true},
		{custom, "fd02::1", policy.Protected, false},
		{custom, "127.0.0.1", policy.Protected, false},
		{custom, "127.0.0.11", policy.Protected, false},
		{custom, "0.0.0.0", policy.Protected, false},
		{custom, "169.254.169.254", policy.Protected, false},
		{custom, "::ffff:169.254.169.254", policy.Protected, false},
		{custom, "64:ff9b::a9fe:a9fe", policy.Protected, false},
		{custom, "64:ff9b::5db8:d822", policy.ByName, true},
		{custom, "64:ff9b::808:808", policy.Denied, false},
		{custom, "64:ff9b::a01:901", policy.Denied, false},
		{custom, "64:ff9b::a01:1", policy.Protected, false},     // allowed in IPv4 alone
		{custom, "64:ff9b::c633:6407", policy.Protected, false}, // the engine's machine
		{custom, "64:ff9b::1:5db8:d822", policy.ByName, true},   // not of the prefix
		{custom, "64:ff9b:1::1", policy.Protected, false},
		{custom, "2002:a9fe:a9fe::1", policy.Protected, false},
		{custom, "2001:0:1::1", policy.Protected, false},
		{custom, "::169.254.169.254", policy.Protected, false},
		{custom, "::1", policy.Protected, false},
		{custom, "fe80::1%eth0", policy.Protected, false},
		{custom, "ff02::1", policy.Protected, false},
		{custom, "224.0.0.1", policy.Protected, false},
		{custom, "255.255.255.255", policy.Protected, false},
		{custom, "100.64.0.1", policy.Protected, false},
		{custom, "198.51.100.7", policy.Protected, false}, // the engine's machine, below
		{custom, "198.51.100.8", policy.ByName, true},
		{"allow=*", "198.51.100.8", policy.Open, true},
		{"allow=*", "192.168.1.1", policy.Protected, false},
		{"public-only", "93.184.216.34", policy.Open, true},
		{"public-only", "198.51.100.7", policy.Protected, false},
		{"public-only", "172.17.0.1", policy.Protected, false},
		{"public-only", "64:ff9b::808:808", policy.Open, true},
		{"public-only", "64:ff9b::ac11:1", policy.Protected, false},
		{"public-only", "64:ff9b::", policy.Protected, false},
		{"public-only", "64:ff9b::ffff:ffff", policy.Protected, false},
		{"public-only", "fd00::1", policy.Protected, false},
		{"deny-all", "93.184.216.34", policy.Closed, false},
		{"deny-all", "10.0.0.1", policy.Protected, false},
		{"subnets.allow=10.1.0.0/16", "10.1.2.3", policy.Subnet, true},
		{"subnets.allow=10.1.0.0/16", "93.184.216.34", policy.Closed, false},
		{"subnets.allow=0.0.0.0/0 subnets.deny=10.0.0.0/8", "10.0.0.1", policy.Denied, false},
		{"subnets.allow=0.0.0.0/0 subnets.deny=10.0.0.0/8", "169.254.169.254", policy.Subnet, true},
		{"allow-all", "10.0.0.1", policy.Open, true},
		{"allow-all", "198.51.100.7", policy.Open, true},
		{"allow-all", "169.254.169.254", policy.Protected, false},
		{"allow-all", "::ffff:169.254.169.254", policy.Protected, false},
		{"allow-all", "fe80::1", policy.Protected, false},
		{"allow-all", "fd00:ec2::254", policy.Protected, false},
		{"allow-all", "fd00:ec2::253", policy.Open, true},
		{"allow-all", "100.100.100.200", policy.Protected, false},
		// Of clouds: Azure's agent, which is public by its number, and what is elsewhere.
		{custom, "168.63.129.16", policy.Protected, false},
		{"allow=*", "168.63.129.16", policy.Protected, false},
		{"public-only", "168.63.129.16", policy.Protected, false},
		{"public-only", "168.63.129.17", policy.Open, true},
		{"allow-all", "168.63.129.16", policy.Protected, false},
		{"allow-all", "168.63.129.15", policy.Open, true},
		{"subnets.allow=168.63.129.16", "168.63.129.16", policy.Subnet, true},
		{"allow-all", "192.0.0.192", policy.Protected, false},
		{"allow-all", "192.0.1.1", policy.Open, true},
		{"allow-all", "fd00:ec2::23", policy.Protected, false},
		{"allow-all", "fd00:ec2::252", policy.Protected, false},
		{"allow-all", "fd00:ec2:ffff::1", policy.Protected, false},
		{"allow-all", "fd00:ec3::1", policy.Open, true},
		{"allow-all", "fd20:ce::254", policy.Protected, false},
		{"allow-all", "fd00:42::42", policy.Protected, false},
		{"allow-all", "fd00:c1::a9fe:a9fe", policy.Protected, false},
		{"allow-all", "fd00:a9fe:a9fe::1", policy.Protected, false},
		{"allow-all", "64:ff9b::a9fe:a9fe", policy.Protected, false},
		{"allow-all", "64:ff9b::a83f:8110", policy.Protected, false},
		{"allow-all", "64:ff9b::808:808", policy.Open, true},
		{"allow-all", "2002:a9fe:a9fe::1", policy.Protected, false},
		{"allow-all", "2002:6464:64c8::1", policy.Protected, false},
		{"allow-all", "2002:808:808::1", policy.Open, true},
	} {
		r := compile(t, test.policy, "198.51.100.7/32")
		a := netip.MustParseAddr(test.addr)
		if got, into := r.Addr(a), r.Into(a); got != test.want || into != test.into {
			t.Errorf("%s: %s is %s, names may lead there: %v; want %s, %v", test.policy, test.addr, got, into, test.want, test.into)
		}
	}
	if got := compile(t, "allow-all").Addr(netip.Addr{}); got.Reaches() {
		t.Errorf("the zero address: %s", got)
	}
}

// What PID 1 asks of a policy as a whole.
func TestWhatAPolicyNeeds(t *testing.T) {
	for text, want := range map[string][3]bool{ // open, resolves, transforms
		"allow-all":                        {true, true, false},
		"public-only":                      {true, true, false},
		"deny-all":                         {},
		"subnets.allow=10.0.0.0/8":         {},
		"allow=a.example":                  {false, true, false},
		"allow=*":                          {true, true, false},
		"allow=* transform=a.example":      {true, true, true},
		"transform=a.example":              {false, true, true},
		"allow=*.example subnets.deny=::1": {false, true, false},
	} {
		r := compile(t, text)
		if got := [3]bool{r.Open(), r.Resolves(), r.Transforms()}; got != want {
			t.Errorf("%s: open, resolves, transforms: %v, want %v", text, got, want)
		}
	}
}

// Merged subnets hold the same addresses, are in order and don't overlap.
func TestMerge(t *testing.T) {
	in := []string{"10.0.1.0/24", "10.0.0.0/24", "10.0.0.0/25", "10.0.3.0/24", "10.0.2.7/24", "fd00::/9", "fd80::/9", "0.0.0.0/32", "255.255.255.255/32"}
	var list []netip.Prefix
	for _, s := range in {
		list = append(list, netip.MustParsePrefix(s))
	}
	var got []string
	for _, f := range policy.Merge(list) {
		got = append(got, f.String())
	}
	if want := []string{"0.0.0.0/32", "10.0.0.0/22", "255.255.255.255/32", "fd00::/8"}; !cmp.Equal(got, want) {
		t.Errorf("Merge: %v, want %v", got, want)
	}
}

// 1,000 entries in every list are few enough to decide quickly.
func BenchmarkName(b *testing.B) {
	var names []string
	for i := range policy.MaxEntries / 2 {
		names = append(names, fmt.Sprintf("*.n%d.example", i), fmt.Sprintf("x.*.n%d.example", i))
	}
	r := compile(b, "allow="+strings.Join(names, ","))
	for b.Loop() {
		if _, ok := r.Name("a.b.c.n499.nowhere"); ok {
			b.Fatal("allowed")
		}
	}
}

// naive is the matcher said once more, in the plainest way: labels from the right.
func naive(pattern, name string) bool {
	p, n := strings.Split(pattern, "."), strings.Split(name, ".")
	slices.Reverse(p)
	slices.Reverse(n)
	for i, label := range p {
		last := i == len(p)-1
		switch {
		case last && label == "*":
			return len(n) > i
		case i >= len(n):
			return false
		case label != "*" && label != n[i]:
			return false
		}
	}
	return len(p) == len(n)
}

// FuzzName compares the matcher with the naive one.
func FuzzName(f *testing.F) {
	for _, s := range [][2]string{
		{"*.example.com", "a.example.com"}, {"a.*.example", "a.b.example"}, {"*", "x"}, {"example.com", "EXAMPLE.com."},
		{"*.*", "a.b.c"}, {"a.example", "a.example.b"}, {"bücher.example", "xn--bcher-kva.example"}, {"*.1x", "0.1x"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if strings.ContainsAny(pattern, ", \t\n\v\f\r\u0085\u00a0") {
			return
		}
		p, err := policy.Parse("allow=" + pattern)
		if err != nil || p.Mode != policy.Custom {
			return
		}
		r, err := p.Compile()
		if err != nil {
			t.Fatalf("Compile of the canonical %q: %v", p, err)
		}
		rule, ok := r.Name(name)
		canon := p.Allow[0].Pattern
		if ok && rule.Pattern != canon {
			t.Fatalf("Name(%q) = %q, and there is only %q", name, rule.Pattern, canon)
		}
		// Whether it is a name at all is known by what may be a pattern.
		plain := false
		if !strings.Contains(name, "*") && isASCII(name) {
			_, err := (policy.Policy{Mode: policy.Custom, Allow: []policy.Name{{Pattern: name}}}).Canon()
			plain = err == nil
		}
		want := plain && naive(canon, strings.TrimSuffix(asciiLower(name), "."))
		if ok != want {
			t.Fatalf("%q allows %q: %v, want %v", canon, name, ok, want)
		}
		if _, err := netip.ParseAddr(name); err == nil && ok {
			t.Fatalf("%q allows the address %q", canon, name)
		}
	})
}

func isASCII(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 }) }

func asciiLower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// FuzzParse: what is taken has one form, which is taken again and compiles.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"allow-all", "deny-all", "public-only", "allow=a.example,*.b.example transform=c.example",
		"subnets.allow=10.0.0.0/8 subnets.deny=10.1.0.0/16,::1 resolve-into=fd00::/8", "allow=bücher.example", "allow=xn--bcher-kva.example", "allow=faß.de,ＡＢＣ.example",
		"subnets.allow=::ffff:10.0.0.0/104", "allow=*.*.*", "allow=\u3002a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := policy.Parse(text)
		if err != nil {
			return
		}
		form := p.String()
		again, err := policy.Parse(form)
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("Parse(%q) is %q, which parses to %#v, %v; want %#v", text, form, again, err, p)
		}
		canon, err := p.Canon()
		if err != nil || !reflect.DeepEqual(p, canon) {
			t.Fatalf("Canon of the canonical %#v: %#v, %v", p, canon, err)
		}
		if _, err := p.Compile(); err != nil {
			t.Fatalf("Compile of %q: %v", form, err)
		}
		for _, n := range p.Allow {
			if !isASCII(n.Pattern) || n.Pattern != strings.ToLower(n.Pattern) {
				t.Fatalf("%q is not canonical", n.Pattern)
			}
		}
	})
}

// FuzzAddr compares the verdict with one made of the lists alone, and has no form of an
// IPv4 address get further than the address.
func FuzzAddr(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, "10.0.0.0/8", "10.0.0.0/24", "10.2.0.0/16")
	f.Add([]byte{169, 254, 169, 254}, "1.1.1.1/32", "8.8.8.8/32", "fd00::/8")
	f.Add([]byte{0x20, 0x02, 0xa9, 0xfe, 0xa9, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, "::/0", "2002::/16", "::/1")
	f.Fuzz(func(t *testing.T, raw []byte, allow, deny, into string) {
		a, ok := netip.AddrFromSlice(raw)
		if !ok {
			return
		}
		var lists [3]netip.Prefix
		for i, s := range []string{allow, deny, into} {
			var err error
			if lists[i], err = policy.ParsePrefix(s); err != nil {
				return
			}
		}
		p, err := policy.Policy{
			Mode: policy.Custom, Allow: []policy.Name{{Pattern: "a.example"}},
			Subnets: policy.Subnets{Allow: lists[:1], Deny: lists[1:2]}, ResolveInto: lists[2:],
		}.Canon()
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		u := a.Unmap()
		private := u.IsPrivate() || u.IsLoopback() || u.IsLinkLocalUnicast() || u.IsMulticast() || u.IsUnspecified() || u.IsLinkLocalMulticast()
		got := r.Addr(a)
		switch {
		case lists[1].Contains(u):
			if got != policy.Denied {
				t.Fatalf("%s in the denied %s is %s", a, lists[1], got)
			}
		case lists[0].Contains(u):
			if got != policy.Subnet {
				t.Fatalf("%s in the allowed %s is %s", a, lists[0], got)
			}
		case private && got != policy.Protected:
			t.Fatalf("%s, which is private, is %s", a, got)
		case got != policy.Protected && got != policy.ByName:
			t.Fatalf("%s is %s", a, got)
		}
		if r.Into(a) && got == policy.Protected && !lists[2].Contains(u) {
			t.Fatalf("a name may lead to the protected %s", a)
		}
		if u.Is4() {
			b := u.As4()
			nat64 := netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
			sixToFour := netip.AddrFrom16([16]byte{0x20, 0x02, b[0], b[1], b[2], b[3], 15: 1})
			everything, err := policy.Policy{Mode: policy.AllowAll}.Compile()
			if err != nil {
				t.Fatal(err)
			}
			for _, form := range []netip.Addr{nat64, sixToFour} {
				if v := r.Addr(form); v == policy.ByName || v == policy.Open {
					t.Fatalf("%s, which carries %s, is %s", form, a, v)
				}
				if v, of := everything.Addr(form), everything.Addr(a); v != of {
					t.Fatalf("%s is %s under allow-all, and %s, which it carries, %s", form, v, a, of)
				}
			}
		}
	})
}
