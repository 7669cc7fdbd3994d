package sandbox

import "net/netip"

// SetDNS is WithDNS, and SetAuthorities WithAuthorities, for what the client does from now
// on.
func (c *Client) SetDNS(servers ...netip.Addr) { c.dns = servers }

func (c *Client) SetAuthorities(pem []byte) { c.authorities = string(pem) }
