package git

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Location is the address of a repository, and separately the credentials for it.
type Location struct {
	Scheme string // "https", "http", "ssh" or "file"
	// URL is passed to git and recorded in the clone. It has no credentials; the user of an
	// ssh URL is part of the address.
	URL string
	// Username and Password are from an http or https URL.
	Username, Password string

	text string // URL without any user
	host string // with the port, for http and https
}

// String returns the URL for display, without user or credentials.
func (l Location) String() string { return l.text }

// Host returns the name or address of the server, "" for a file.
func (l Location) Host() string {
	if l.Scheme == "file" {
		return ""
	}
	if u, err := url.Parse(l.URL); err == nil && u.Host != "" {
		return u.Hostname()
	}
	rest := l.text // host:path
	if strings.HasPrefix(rest, "[") {
		host, _, _ := strings.Cut(rest, "]")
		return host[1:]
	}
	host, _, _ := strings.Cut(rest, ":")
	return host
}

// maxURL bounds a URL, as many servers do.
const maxURL = 8 << 10

var (
	hostRule = regexp.MustCompile(`^(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)$`)
	portRule = regexp.MustCompile(`^[0-9]{1,5}$`)
	userRule = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`)
	helper   = regexp.MustCompile(`^[A-Za-z0-9+.-]*::`)
)

// Parse parses a URL (https, http, ssh or file), an scp-like address (user@host:path) or an
// absolute path. Its errors never repeat the URL, which may contain a secret.
func Parse(raw string) (Location, error) {
	switch {
	case raw == "":
		return Location{}, errors.New("the URL is empty")
	case len(raw) > maxURL:
		return Location{}, fmt.Errorf("the URL is longer than %d bytes", maxURL)
	case filepath.IsAbs(raw) && !strings.ContainsRune(raw, 0):
		l := Location{Scheme: "file", URL: raw, text: raw}
		if odd(raw) {
			l.text = strconv.Quote(raw)
		}
		return l, nil
	case odd(raw):
		return Location{}, errors.New("the URL has control characters or is not UTF-8")
	case raw[0] == '-':
		return Location{}, errors.New("the URL begins with '-'")
	case helper.MatchString(raw):
		return Location{}, errors.New("the URL names a program to get it with (x::…): use https, http, ssh or file")
	case strings.Contains(raw, "://"):
		return parseURL(raw)
	}
	return parseSCP(raw)
}

// odd reports what no URL has, and no terminal should get.
func odd(s string) bool { return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) }

func parseURL(raw string) (Location, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Location{}, errors.New("the URL can't be read") // err repeats it
	}
	l := Location{Scheme: u.Scheme}
	if u.RawQuery != "" || u.ForceQuery || strings.ContainsRune(raw, '#') {
		return Location{}, errors.New("the URL has a query or fragment")
	}
	user := u.User
	u.User = nil
	l.text = u.String()
	switch l.Scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" || user != nil || !strings.HasPrefix(u.Path, "/") {
			return Location{}, errors.New("a file URL is file:///path, without a host other than localhost")
		}
		l.URL = u.String()
		return l, nil
	case "https", "http", "ssh":
	default:
		return Location{}, fmt.Errorf("unsupported scheme %q: use https, http, ssh or file", u.Scheme)
	}
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if !hostRule.MatchString(host) || strings.HasSuffix(u.Host, ":") || u.Port() != "" && !portRule.MatchString(u.Port()) {
		return Location{}, errors.New("the URL has no valid host")
	}
	if u.Path == "" || u.Path == "/" {
		return Location{}, errors.New("the URL has no path")
	}
	password, _ := user.Password()
	if l.Scheme == "ssh" {
		if password != "" {
			return Location{}, errors.New("the ssh URL has a password: ssh uses keys")
		}
		if user != nil {
			if !userRule.MatchString(user.Username()) {
				return Location{}, errors.New("the ssh URL has an invalid user")
			}
			u.User = url.User(user.Username())
		}
		l.URL = u.String()
		return l, nil
	}
	l.Username, l.Password, l.host = user.Username(), password, u.Host
	l.URL = u.String()
	return l, nil
}

// parseSCP reads [user@]host:path.
func parseSCP(raw string) (Location, error) {
	user, rest, found := strings.Cut(raw, "@")
	if !found || strings.ContainsAny(user, "/") {
		user, rest = "", raw
	}
	if strings.Contains(user, ":") {
		return Location{}, errors.New("the address has a password: ssh uses keys")
	}
	host, path, found := strings.Cut(rest, ":")
	if strings.HasPrefix(rest, "[") {
		host, path, found = strings.Cut(rest, "]:")
		host += "]"
	}
	drive := runtime.GOOS == "windows" && len(host) == 1
	if !found || strings.ContainsRune(host, '/') || drive {
		return Location{}, errors.New("it is neither a URL nor an absolute path")
	}
	switch {
	case user == "" && slices.Contains([]string{"https", "http", "ssh", "file", "git"}, strings.ToLower(host)):
		return Location{}, fmt.Errorf("two slashes are missing after %q", host+":")
	case !hostRule.MatchString(host):
		return Location{}, errors.New("invalid host")
	case user != "" && !userRule.MatchString(user):
		return Location{}, errors.New("invalid user")
	case path == "" || strings.HasPrefix(path, "-"):
		return Location{}, errors.New("invalid path")
	}
	return Location{Scheme: "ssh", URL: raw, text: host + ":" + path}, nil
}

// CheckRevision checks the name of a branch or tag, or the ID of a commit.
func CheckRevision(rev string) error {
	const forbidden = " ~^:?*[\\"
	switch {
	case len(rev) > 1024 || odd(rev) || strings.ContainsAny(rev, forbidden):
	case strings.HasPrefix(rev, "-"), strings.HasPrefix(rev, "/"), strings.HasSuffix(rev, "/"), strings.HasSuffix(rev, "."), rev == "@":
	case strings.Contains(rev, ".."), strings.Contains(rev, "//"), strings.Contains(rev, "@{"):
	default:
		return nil
	}
	return fmt.Errorf("invalid revision %.100q: use a branch, a tag or a commit ID", rev)
}
