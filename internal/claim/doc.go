// Package claim decides who of several processes may create, change or delete a sandbox, with the
// engine's volumes as the only thing that they share.
//
// # What it builds on
//
// Creating a volume whose name exists returns that volume, with the labels it was created with. Labels
// never change. So whoever creates a volume adds a random nonce to its labels, and compares the nonce
// in the answer: of any number of processes exactly one finds its own. That is the compare-and-swap of
// this package; [Volumes] has all that it needs of the engine. Everything else has to be expected: a
// call fails with or without effect, a process dies or sleeps between any two calls, and the engine's
// clock, which is the only one that all have, is set.
//
// # Claim and takeover
//
// [Try] creates a marker, a volume named after the sandbox. Who finds the own nonce holds the name,
// and everybody else gets a [TakenError]. The marker's label says until when: [Lease] from now. A label
// can't be prolonged, so the holder creates renewals, two volumes that it replaces in turn, every third
// of the lease. [Claim.Commit] removes the marker: what was made under it is now there for everybody.
// [Claim.Drop] removes it as well, after the holder has removed what it made. All objects carry the
// nonce, so that others can tell what belongs to the claim.
//
// A process whose lease was not renewed in time has lost the claim, by its own clocks: the context of
// [Claim.Bind] ends, and Commit fails with [ErrLost]. It does so 5 s before anybody may take over.
//
// A marker is expired if its lease and that of its renewals are over by the engine's clock. Since that
// clock may have been set, [Watch] counts a holder as dead only after it has also seen the marker
// expired for [ConfirmAfter] by its own clock, without a renewal. [TakeOver] then creates a lock,
// looks at the marker once more, removes all that has the dead holder's nonce, then the marker, then
// the lock. The lock has a lease, and [TakeOverTime], after which a takeover gives up, is shorter.
//
// # Revisions
//
// A change of a sandbox is a new volume, too. [Revise] creates the revision after the latest one that it
// knows. If another process was first it reads that one, and applies the change again, on top. A
// revision contains all changes so far, so only the highest number counts; [Latest] finds it without a
// list. A slow writer may create a number again that a sweep has removed as superseded: it then finds
// higher ones that do not follow its own, removes it, and tries again.
//
// # Sweeps
//
// [TrySweep] gives one process of all the turn to clean up, each minute of the engine's clock: the
// name of the volume that they all create contains the minute.
//
// # What holds
//
// Whatever fails, and whoever dies or sleeps:
//
//   - Never two: when a claim is held, and not lost by its holder's clocks, nobody else holds the name,
//     or removes what the claim's nonce is on. A claim that was committed is taken over by nobody.
//   - Nothing is lost: what a claim made is committed, or removed by its holder, or by a takeover. A
//     change that Revise made is in what everybody reads from then on.
//   - It ends: when all others are dead, who comes gets the name after Lease and ConfirmAfter. When all
//     are done, no volume of this package is left but those that a list shows as leftovers.
//
// One thing is assumed: a call takes effect before its caller has given up the claim, and not a minute
// later. The engine may carry out a call late whose connection is lost; if the creation of a marker or a
// renewal takes effect after a takeover, two processes may hold the name for a while. What one of them has
// committed is not removed then.
//
// TestNeverTwoHolders and TestNoChangeIsLost try this without an engine, with a failure at each call.
package claim
