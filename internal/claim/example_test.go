package claim_test

import (
	"context"
	"fmt"
	"log"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Two processes want the same name. The one that gets it makes what it wants under the claim, with
// the claim's nonce on everything, and then commits.
func Example() {
	ctx, volumes := context.Background(), newMemory() // in the place of an engine
	mine, err := claim.Try(ctx, volumes, "web", record.NewNonce(), "alice")
	if err != nil {
		log.Fatal(err)
	}
	defer mine.Stop()

	_, err = claim.Try(ctx, volumes, "web", record.NewNonce(), "bob")
	fmt.Println(err)

	working, release := mine.Bind(ctx) // ends if the claim is lost
	defer release()
	fmt.Println("alice works:", working.Err() == nil)
	if err := mine.Commit(ctx); err != nil {
		log.Fatal(err) // somebody may be removing what was made: remove the rest
	}
	_, found, err := claim.FindMarker(ctx, volumes, "web")
	fmt.Println("a marker is left:", found, err)
	// Output:
	// "web" is being made by alice
	// alice works: true
	// a marker is left: false <nil>
}
