package sandbox_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/seed-1a2d6d8f/sandbox"
)

// What a sandbox may reach is said when it is made.
func ExampleWithNetworkPolicy() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Allow:   []string{"registry.npmjs.org", "*.github.com"},
		Subnets: sandbox.Subnets{Allow: []string{"10.1.0.0/16"}, Deny: []string{"10.1.2.0/24"}},
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(st.Network)
	// Output: allow=*.github.com,registry.npmjs.org subnets.allow=10.1.0.0/16 subnets.deny=10.1.2.0/24
}

// The policy changes while the session runs, and tells what it did.
func ExampleSandbox_Egress() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	if err := sb.Update(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll())); err != nil {
		fmt.Println(err)
		return
	}
	tried, err := sb.Egress(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range tried {
		fmt.Println(t.Name, t.Address, t.Allowed)
	}
	// Output:
}

// Headers that are set on the way out never enter the sandbox, and print as their names.
func ExampleTransform() {
	token := os.Getenv("TOKEN")
	policy := sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Transform: map[string]sandbox.Transform{
			"api.github.com": {SetHeaders: sandbox.Headers{"Authorization": "Bearer " + token}},
		},
	})
	_ = policy // for Create or Update
	fmt.Println(sandbox.Transform{SetHeaders: sandbox.Headers{"Authorization": "Bearer secret"}})
	// Output: {[Authorization]}
}

// A signature over the method, the path and the body of each request is made here, where the key
// is. The sandbox gets neither.
func ExampleTransform_do() {
	key := []byte(os.Getenv("SIGNING_KEY"))
	policy := sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Transform: map[string]sandbox.Transform{
			"api.example.com": {Do: func(r *http.Request) error {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return err
				}
				mac := hmac.New(sha256.New, key)
				fmt.Fprintf(mac, "%s\n%s\n%x", r.Method, r.URL.RequestURI(), sha256.Sum256(body))
				r.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
				return nil
			}},
		},
	})
	_ = policy // for Create or Update
	fmt.Println(sandbox.Transform{Do: func(*http.Request) error { return nil }})
	// Output: {[] Do}
}

// The text of a policy is what a command line takes and what is printed.
func ExampleParseNetworkPolicy() {
	p, err := sandbox.ParseNetworkPolicy("allow=*.github.com,registry.npmjs.org subnets.deny=10.0.0.0/8")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Allow)
	fmt.Println(p)
	fmt.Println(sandbox.NetworkPolicy{Allow: []string{"not a name"}}.Check() != nil)
	// Output:
	// [*.github.com registry.npmjs.org]
	// allow=*.github.com,registry.npmjs.org subnets.deny=10.0.0.0/8
	// true
}

func ExampleNetworkPolicy_Allows() {
	policy := sandbox.NetworkPolicy{Allow: []string{"*.example.com"}}
	for _, host := range []string{"api.example.com", "example.org"} {
		allowed, rule, err := policy.Allows(host, 443)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(host, allowed, rule)
	}
}
