package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// foreignVolume makes a volume on the engine that no sandbox has to do with, as other programs do.
// It returns how to remove it, and how to see whether it is there.
func foreignVolume(ctx context.Context, host, name string) (remove func() error, exists func() (bool, error), err error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, nil, err
	}
	if u.Scheme != "unix" {
		return nil, nil, missing("a volume that is no sandbox's can't be made over " + u.Scheme + "://")
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", u.Path)
	}}
	call := func(method, path string, body []byte) (int, error) {
		req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), method, "http://engine/v1.41"+path, bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Client{Transport: transport, Timeout: checkTimeout}).Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		if err == nil && resp.StatusCode >= 300 && resp.StatusCode != http.StatusNotFound {
			err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
		}
		return resp.StatusCode, err
	}
	body, err := json.Marshal(map[string]string{"Name": name})
	if err != nil {
		return nil, nil, err
	}
	if _, err := call(http.MethodPost, "/volumes/create", body); err != nil {
		return nil, nil, err
	}
	remove = func() error {
		_, err := call(http.MethodDelete, "/volumes/"+name, nil)
		return err
	}
	exists = func() (bool, error) {
		status, err := call(http.MethodGet, "/volumes/"+name, nil)
		return status == http.StatusOK, err
	}
	return remove, exists, nil
}
