package sandboxhttp

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"

	"golang.org/x/net/http/httpguts"
)

// offerUpgrade lets a request to a server inside have all protocols that its client offers, of which
// ReverseProxy passes the first line. It never has h2c: further requests would pass unseen.
func offerUpgrade(out http.Header, offers []string) {
	switch {
	case out["Upgrade"] == nil: // none is asked for
	case httpguts.HeaderValuesContainsToken(offers, "h2c"):
		out.Del("Upgrade")
		out.Del("Connection")
	default:
		out["Upgrade"] = slices.Clone(offers)
	}
}

// chooseUpgrade makes the protocol that a server inside has chosen the only one that was offered, which
// ReverseProxy wants it to be.
func chooseUpgrade(answer *http.Response) {
	asked, chosen := answer.Request.Header, answer.Header.Get("Upgrade")
	if answer.StatusCode == http.StatusSwitchingProtocols && httpguts.HeaderValuesContainsToken(asked["Upgrade"], chosen) {
		asked.Set("Upgrade", chosen)
	}
}

// An upgrader is for ReverseProxy, which would lose what the server has read already of a client that
// asks for an upgrade.
type upgrader struct{ http.ResponseWriter }

// Unwrap is for [http.ResponseController].
func (u upgrader) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u upgrader) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	said, err := buffered.Peek(buffered.Reader.Buffered())
	return &upgraded{conn, io.MultiReader(bytes.NewReader(said), conn)}, buffered, err
}

// upgraded is a client's connection that is read from what came first.
type upgraded struct {
	net.Conn
	from io.Reader
}

func (u *upgraded) Read(b []byte) (int, error) { return u.from.Read(b) }

func (u *upgraded) CloseWrite() error {
	if c, can := u.Conn.(interface{ CloseWrite() error }); can {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported // which ends both directions
}
