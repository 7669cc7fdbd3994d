package enginetest

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// NewNetwork makes a network that the machine itself has no IPv4 address in, and no way
// out of. It is removed when the test ends; what is connected to it then is let go.
// Where another network has the subnet it waits for that to go.
func NewNetwork(t testing.TB, subnets ...netip.Prefix) (name string) {
	t.Helper()
	Need(t)
	name = "enginetest-" + strings.ToLower(rand.Text()[:10])
	var config []map[string]string
	six := false
	for _, s := range subnets {
		config = append(config, map[string]string{"Subnet": s.String()})
		six = six || s.Addr().Is6()
	}
	t.Cleanup(func() {
		var r *refusal
		if _, err := do(t, http.MethodDelete, "/networks/"+name, "", nil); err != nil && (!errors.As(err, &r) || r.status != http.StatusNotFound) {
			t.Errorf("remove the network: %v", err)
		}
	})
	must(t, "create the network", func() (err error) {
		for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
			err = post(t, "/networks/create", map[string]any{
				"Name": name, "Driver": "bridge", "Internal": true, "EnableIPv6": six, "IPAM": map[string]any{"Config": config},
				"Options": map[string]string{"com.docker.network.bridge.inhibit_ipv4": "true"},
			})
			if err == nil || !strings.Contains(err.Error(), "overlaps") {
				return err
			}
		}
		return err
	})
	return name
}

// Connect connects a container to a network, at the addresses if they are valid, until
// the test ends.
func Connect(t testing.TB, network, container string, four, six netip.Addr) {
	t.Helper()
	at := map[string]string{}
	if four.IsValid() {
		at["IPv4Address"] = four.String()
	}
	if six.IsValid() {
		at["IPv6Address"] = six.String()
	}
	must(t, "connect "+container, func() error {
		return post(t, "/networks/"+network+"/connect", map[string]any{"Container": container, "EndpointConfig": map[string]any{"IPAMConfig": at}})
	})
	t.Cleanup(func() {
		// It may be gone by now.
		_ = post(t, "/networks/"+network+"/disconnect", map[string]any{"Container": container, "Force": true})
	})
}
