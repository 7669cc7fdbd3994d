package record

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
)

// MarkerName is the name of the volume that says that a sandbox of that name is being made, changed or
// deleted. Names of sandboxes are lower-case, so an upper-case letter after the last dot of the names
// below can't be part of one.
func MarkerName(name string) string { return objects + "pending." + name }

// TakeoverName is the name of the lock of whoever takes over from a marker's dead holder.
func TakeoverName(name string) string { return MarkerName(name) + ".T" }

// IsMarkerName reports whether an object has the marker's name.
func IsMarkerName(object, name string) bool { return object == MarkerName(name) }

// IsRenewalName reports whether an object has the name of a renewal of the marker.
func IsRenewalName(object, name string) bool { return strings.HasPrefix(object, MarkerName(name)+".R") }

// RenewalNames are the names of a marker's renewals, which are used in turn, so that readers
// find them without a list. No other marker of that name has the same.
func RenewalNames(name, nonce string) [2]string {
	sum := sha256.Sum256([]byte(nonce))
	of := encoding.EncodeToString(sum[:])[:12]
	return [2]string{MarkerName(name) + ".R0-" + of, MarkerName(name) + ".R1-" + of}
}

// A Marker says that a sandbox of that name is being made or deleted, by whom and until
// when. When its holder dies, the objects with its nonce are removed.
//
// With Of, the nonce of an existing sandbox, that sandbox is being changed, and nothing is
// removed.
type Marker struct {
	Name, Nonce, Holder string
	Of                  string
	Deletes             bool   // the sandbox exists and is being deleted
	By                  string // the deletion, of several that have the sandbox's nonce
	Until               time.Time
	// From is set if a sandbox is being moved between nodes of a swarm, on both of them: the nonce
	// that it has on Node. The marker there has it as Of, too.
	From, Node string
}

// Moves reports whether a sandbox is being moved between nodes.
func (m Marker) Moves() bool { return m.From != "" }

// Labels encodes m for a volume of that role.
func (m Marker) Labels(role string, now time.Time) map[string]string {
	l := Base(role, m.Nonce, now)
	l[Name], l[Holder] = m.Name, m.Holder
	l[Until] = m.Until.UTC().Format(time.RFC3339Nano)
	if m.Of != "" {
		l[Of] = m.Of
	}
	if m.Deletes {
		l[Deletes], l[By] = "true", m.By
	}
	if m.Moves() {
		l[From], l[Node] = m.From, m.Node
	}
	return l
}

// DecodeMarker is the inverse of Marker.Labels.
func DecodeMarker(labels map[string]string) Marker {
	// A time that can't be read counts as expired.
	until, _ := time.Parse(time.RFC3339Nano, labels[Until])
	return Marker{Name: labels[Name], Nonce: labels[Nonce], Holder: labels[Holder], Of: labels[Of], By: labels[By], Until: until,
		Deletes: labels[Deletes] == "true", From: labels[From], Node: labels[Node]}
}

// Renew takes the time from a volume of that name if it is a renewal of the marker.
func (m *Marker) Renew(object string, labels map[string]string) {
	if Is(labels, RolePending) && IsRenewalName(object, m.Name) && labels[Nonce] == m.Nonce {
		if r := DecodeMarker(labels); r.Until.After(m.Until) {
			m.Until = r.Until
		}
	}
}

// Expired reports whether the marker's lease has run out.
func (m Marker) Expired(now time.Time) bool { return now.After(m.Until) }

// ForeignError reports an object that is not ours but has a name of ours.
type ForeignError struct{ Kind, Object string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %q exists and was not made by this library: remove or rename it", e.Kind, e.Object)
}
