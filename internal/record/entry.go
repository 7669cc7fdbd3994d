package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
)

// An Entry says which node of a swarm has the sandbox of a name. There is one of each name in the
// swarm's store.
type Entry struct {
	Name, ID, Nonce string // of the sandbox
	Node, Host      string // the node's ID and name
	CreatedAt       time.Time
	// From and Previous are set once the sandbox was moved: its nonce on the node from which it came, and
	// the state of the container that was copied there.
	From, Previous string
	// Deletes is set once a deletion was asked for that could not reach the node.
	Deletes *Deletion
}

// A Deletion says what the deletion of a sandbox deletes beside it.
type Deletion struct {
	Volumes   bool `json:"volumes,omitempty"`
	Snapshots bool `json:"snapshots,omitempty"`
}

// maxEntry is the length of the names that the store takes.
const maxEntry = 64

// EntryName is the name of the entry for a sandbox of that name. The store takes names of up to 64
// characters that end with a letter or digit. Names of sandboxes are lower-case, so a name with an
// upper-case letter is no other sandbox's.
func EntryName(name string) string {
	entry := ContainerName(name)
	if len(entry) <= maxEntry && !strings.ContainsAny(entry[len(entry)-1:], "-_.") {
		return entry
	}
	sum := sha256.Sum256([]byte(name))
	const digits = 18
	return entry[:min(maxEntry-len(".X")-digits, len(entry))] + ".X" + hex.EncodeToString(sum[:])[:digits]
}

// Labels encodes e.
func (e Entry) Labels() map[string]string {
	l := Base(RoleEntry, e.Nonce, e.CreatedAt)
	l[Name], l[ID], l[Node], l[host] = e.Name, e.ID, e.Node, e.Host
	if e.From != "" {
		l[From], l[After] = e.From, e.Previous
	}
	if e.Deletes != nil {
		text, _ := json.Marshal(e.Deletes) // booleans can be
		l[Deletes] = string(text)
	}
	return l
}

// DecodeEntry is the inverse of Entry.Labels. It reports whether the labels are an entry's.
func DecodeEntry(labels map[string]string) (Entry, bool) {
	at, _ := time.Parse(time.RFC3339Nano, labels[CreatedAt])
	e := Entry{Name: labels[Name], ID: labels[ID], Nonce: labels[Nonce], Node: labels[Node], Host: labels[host], CreatedAt: at,
		From: labels[From], Previous: labels[After]}
	if text := labels[Deletes]; text != "" {
		e.Deletes = &Deletion{}
		_ = json.Unmarshal([]byte(text), e.Deletes) // what can't be read deletes nothing beside
	}
	return e, Is(labels, RoleEntry) && ValidName(e.Name) && ValidName(e.ID)
}
