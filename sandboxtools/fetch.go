package sandboxtools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

type fetchInput struct {
	Port    whole    `json:"port"`
	Path    string   `json:"path"`
	Method  string   `json:"method"`
	Headers []string `json:"headers"`
	Body    string   `json:"body"`
}

func (s *set) fetchTool() Tool {
	return define(s, Tool{
		Name: "fetch",
		Description: fmt.Sprintf("Request a page from an HTTP server that runs in the sandbox, at localhost, and read %d bytes of it at most. Redirects are not followed. "+
			"No port needs to be published. Nothing outside of the sandbox can be reached.", s.limits.Output),
		Schema: schema(
			property{"port", "integer", false, "the port of the server, 1 to 65535"},
			property{"path", "string", false, "the path, with a query if there is one, such as /"},
			property{"method", "string", true, "default GET"},
			property{"headers", "array", false, "such as Content-Type: application/json; may be empty"},
			property{"body", "string", false, "the body of the request, may be empty"},
		),
	}, s.fetch)
}

func (s *set) fetch(ctx context.Context, in fetchInput) (Result, error) {
	if in.Port < 1 || in.Port > 65535 {
		return Result{}, fmt.Errorf("port %d is not one from 1 to 65535", in.Port)
	}
	if in.Path = cmp.Or(in.Path, "/"); !strings.HasPrefix(in.Path, "/") {
		return Result{}, fmt.Errorf("path %q does not begin with a slash", in.Path)
	}
	address := net.JoinHostPort("localhost", strconv.Itoa(int(in.Port)))
	ctx, cancel := context.WithTimeoutCause(ctx, s.limits.CommandTime, fmt.Errorf("the server took longer than %v, which is the limit", s.limits.CommandTime))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, cmp.Or(in.Method, "GET"), "http://"+address+in.Path, strings.NewReader(in.Body))
	if err != nil {
		return Result{}, err
	}
	for _, h := range in.Headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return Result{}, fmt.Errorf("header %q is not name: value", h)
		}
		if req.Header.Add(name, strings.TrimSpace(value)); strings.EqualFold(name, "Host") {
			req.Host = strings.TrimSpace(value)
		}
	}
	// Whatever the request says, it goes to that port inside.
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.sb.DialContext(ctx, "tcp", address)
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	switch {
	case ctx.Err() != nil && err != nil:
		return Result{}, context.Cause(ctx)
	case errors.Is(err, syscall.ECONNREFUSED):
		return Result{}, fmt.Errorf("nothing listens on port %d in the sandbox: %w", in.Port, err)
	case err != nil:
		return Result{}, err
	}
	defer res.Body.Close()
	return s.response(ctx, res)
}

// response reads what a result may have of a response.
func (s *set) response(ctx context.Context, res *http.Response) (Result, error) {
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s\n", res.Proto, res.Status)
	for _, name := range slices.Sorted(maps.Keys(res.Header)) {
		for _, value := range res.Header[name] {
			if head.Len() < s.limits.Output/4 {
				fmt.Fprintf(&head, "%s: %.500s\n", name, value)
			}
		}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(s.limits.Output)+1))
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Result{}, err
	}
	out := Result{More: len(body) > s.limits.Output}
	text := ""
	if out.More {
		body, text = body[:s.limits.Output], "\n[the body has more]"
	}
	out.Text = valid([]byte(head.String())) + "\n" + valid(body) + text
	return out, nil
}
