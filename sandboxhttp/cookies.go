package sandboxhttp

import (
	"net/http"
	"slices"
	"strings"
)

// keepCookies makes the cookies of an answer those of its host alone: one for the whole domain
// would go to other sandboxes.
func keepCookies(answer *http.Response) error {
	lines := answer.Header["Set-Cookie"]
	if len(lines) == 0 {
		return nil
	}
	answer.Header.Del("Set-Cookie")
	for _, line := range lines {
		if kept := hostCookie(line); kept != "" {
			answer.Header["Set-Cookie"] = append(answer.Header["Set-Cookie"], kept)
		}
	}
	return nil
}

// cookieAttributes are those that leave a cookie with its host, in the case in which they are sent on.
var cookieAttributes = []string{"Expires", "Max-Age", "Path", "Secure", "HttpOnly", "SameSite", "Partitioned", "Priority"}

// hostCookie returns the line of a Set-Cookie header for its host alone, or "" if browsers would not
// take it, or could take it for ours. It is read as browsers read it (RFC 6265bis, section 5.6), and
// built anew: what is not known to leave the cookie with its host is not sent on. The name and the
// value stay as they are.
func hostCookie(line string) string {
	if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return ""
	}
	pair, rest, _ := strings.Cut(line, ";")
	name, value, named := strings.Cut(pair, "=")
	if !named {
		name, value = "", pair
	}
	name, value = trimCookie(name), trimCookie(value)
	switch {
	case isPreviewCookie(name), name == "" && value == "":
		return ""
	case name == "":
		// It is sent as the value alone, which may look like one with a name.
		if other, _, _ := strings.Cut(value, "="); isPreviewCookie(trimCookie(other)) {
			return ""
		}
	}
	kept := value
	if name != "" || strings.Contains(value, "=") {
		kept = name + "=" + value
	}
	for attribute := range strings.SplitSeq(rest, ";") {
		key, value, valued := strings.Cut(attribute, "=")
		i := slices.IndexFunc(cookieAttributes, func(known string) bool { return strings.EqualFold(known, trimCookie(key)) })
		if i < 0 {
			continue
		}
		kept += "; " + cookieAttributes[i]
		if valued {
			kept += "=" + trimCookie(value)
		}
	}
	return kept
}

// trimCookie removes the white space that browsers remove around the parts of a cookie.
func trimCookie(s string) string { return strings.Trim(s, " \t") }

// withoutPreviewCookie returns the Cookie headers of a request without our cookie. The others stay as
// they are, also those that package http would not parse.
func withoutPreviewCookie(lines []string) (rest []string) {
	for _, line := range lines {
		pairs := strings.Split(line, ";")
		others := slices.DeleteFunc(slices.Clone(pairs), func(pair string) bool {
			name, _, _ := strings.Cut(pair, "=")
			return isPreviewCookie(trimCookie(name))
		})
		if len(others) < len(pairs) {
			line = strings.TrimLeft(strings.Join(others, ";"), " \t")
		}
		if line != "" || len(others) == len(pairs) {
			rest = append(rest, line)
		}
	}
	return rest
}
