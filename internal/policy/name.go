package policy

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/idna"
)

const (
	maxName  = 253 // RFC 1035, without the final dot
	maxLabel = 63
)

// canonPattern checks a pattern and returns its canonical form.
func canonPattern(in string) (string, error) {
	bad := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("name %q: %w", in, fmt.Errorf(format, args...))
	}
	s := strings.TrimSuffix(in, ".")
	if s == "" {
		return bad("it is empty")
	}
	if !isASCII(s) {
		ascii, err := toASCII(s)
		if err != nil {
			return bad("not a domain name: %w", err)
		}
		s = ascii
	}
	s = lower(s)
	if err := checkName(s, true); err != nil {
		return bad("%w", err)
	}
	return s, nil
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// toASCII converts each label that is not ASCII by the lookup rules of UTS 46, which know no _.
func toASCII(s string) (string, error) {
	labels := strings.Split(s, ".")
	for i, l := range labels {
		if isASCII(l) {
			continue
		}
		ascii, err := idna.Lookup.ToASCII(l)
		if err != nil {
			return "", err
		}
		labels[i] = ascii
	}
	return strings.Join(labels, "."), nil
}

// lower maps ASCII letters alone. strings.ToLower would also map others to ASCII, such as
// the Kelvin sign to k.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

var (
	errAddress = errors.New("an address is not a name: put it into Subnets")
	errLabel   = errors.New("a label is 1 to 63 letters, digits, - and _, and does not begin or end with -")
	errStar    = errors.New("a * stands for whole labels")
	errLong    = errors.New("it is longer than 253 characters")
)

// checkName checks a name, or a pattern of names, in lower case.
func checkName(s string, pattern bool) error {
	if len(s) > maxName {
		return errLong
	}
	last := s
	for rest, more := s, true; more; {
		last, rest, more = strings.Cut(rest, ".")
		if pattern && last == Any {
			continue
		}
		if last == "" || len(last) > maxLabel || last[0] == '-' || last[len(last)-1] == '-' {
			return errLabel
		}
		for i := range len(last) {
			switch c := last[i]; {
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			case c == '*':
				return errStar
			case c == ':' && strings.Count(s, ":") > 1:
				return errAddress
			default:
				return errLabel
			}
		}
	}
	// Resolvers and URL parsers take a name that ends in a number for an IPv4 address.
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return errAddress
	}
	return nil
}

// matches reports whether pattern matches a name that is checked and in lower case.
func matches(pattern, name string) bool {
	for {
		p, l := strings.LastIndexByte(pattern, '.'), strings.LastIndexByte(name, '.')
		if p < 0 {
			// The first label: a star takes this label and all before it.
			return pattern == Any || l < 0 && pattern == name
		}
		if label := pattern[p+1:]; l < 0 || label != Any && label != name[l+1:] {
			return false
		}
		pattern, name = pattern[:p], name[:l]
	}
}
