package fork_test

import (
	"archive/tar"
	"bufio"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A database has accounts in several directories, 100,000 together in each, and a log of transactions.
type database struct {
	name   string
	places []string
	user   string
	make   string // a script that makes its files, before there is SQL
	start  string // a script for what writes
	client string // a command that runs the SQL that it reads
	audit  string // a command that does so with a copy
	begin  string // SQL for each connection
	schema string // and for each place, where DB stands for it
	insert string // a transaction's part in each place
	check  string // prints for each place ok, the sum and the last transaction's number
	apart  int    // how far these may be apart between places
}

// sqlite is a database of a file in each place. With a rollback journal a transaction is one for all files together: while it is
// committed, a file beside the first one names the journals of all. With a WAL it is one for each file.
func sqlite(mode string, apart int, places []string) *database {
	d := &database{
		name: "SQLite " + mode, places: places, apart: apart,
		client: fmt.Sprintf("/usr/bin/sqlite3 -bail '%s/%s.db'", places[0], mode),
		schema: "PRAGMA DB.journal_mode=" + mode + "; CREATE TABLE DB.log(n INTEGER PRIMARY KEY, note); CREATE INDEX DB.notes ON log(note); CREATE TABLE DB.accounts(id INTEGER PRIMARY KEY, balance);" +
			"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 100) INSERT INTO DB.accounts SELECT i, 1000 FROM n;",
		insert: "INSERT INTO DB.log(note) VALUES (hex(randomblob(abs(random() % 400))));" + transfer,
		check:  "PRAGMA DB.integrity_check; SELECT (SELECT sum(balance) FROM DB.accounts), (SELECT max(n) FROM DB.log);",
	}
	d.audit = d.client
	for i, dir := range places[1:] {
		d.begin += fmt.Sprintf("ATTACH '%s/%s.db' AS place%d;", dir, mode, i+1)
	}
	return d
}

// transfer is what a transaction does after it has written to the log.
const transfer = "UPDATE DB.accounts SET balance = balance - 7 WHERE id = 1 + (SELECT max(n) FROM DB.log) % 100;" +
	"UPDATE DB.accounts SET balance = balance + 7 WHERE id = 1 + (SELECT max(n) FROM DB.log) * 37 % 100;" +
	"DELETE FROM DB.log WHERE n < (SELECT max(n) FROM DB.log) - 300;"

// postgreSQLs is the directory of this machine's PostgreSQL.
func postgreSQLs(t *testing.T) string {
	t.Helper()
	all, err := filepath.Glob("/usr/lib/postgresql/*")
	if err != nil || len(all) == 0 {
		t.Fatalf("PostgreSQL: %v, %v (ci/clients installs it)", all, err)
	}
	return all[len(all)-1]
}

// postgreSQL has a tablespace in each place, and its WAL in the second one. Its single-user mode repairs the files of a copy as
// a server does that has crashed.
func postgreSQL(t *testing.T, places []string) *database {
	t.Helper()
	bin := postgreSQLs(t) + "/bin/"
	data, wal := "'"+places[0]+"/postgresql'", "'"+places[1]+"/wal'"
	d := &database{
		name: "PostgreSQL", places: places, user: "70:70",
		make: bin + "initdb -k -A trust --no-instructions --no-sync -E UTF8 --locale C --wal-segsize 1 -D " + data + " -X " + wal +
			" && echo \"min_wal_size = 2MB\nmax_wal_size = 4MB\nunix_socket_directories = '/tmp'\nlisten_addresses = ''\nautovacuum_naptime = 1s\" >>" + data + "/postgresql.conf",
		start:  "/bin/rm -f " + data + "/postmaster.pid && " + bin + "pg_ctl -s -w -t 600 -l /tmp/postgresql.log -D " + data + " start",
		client: bin + "psql -q -A -t -v ON_ERROR_STOP=1 -h /tmp postgres",
		audit:  "/bin/rm -f " + data + "/postmaster.pid; " + bin + "postgres --single -D " + data + " postgres 2>&1 && " + bin + "pg_checksums -D " + data,
		insert: "INSERT INTO DB.log(note) SELECT repeat(md5(random()::text), (random() * 20)::int);" + transfer,
		check: "SELECT bt_index_check(c.oid, true) FROM pg_class c WHERE c.relkind = 'i' AND c.relnamespace = 'DB'::regnamespace;\n" +
			"SELECT 'ok|' || (SELECT sum(balance) FROM DB.accounts) || '|' || (SELECT max(n) FROM DB.log) || '';\n",
		schema: "CREATE SCHEMA DB; CREATE TABLE DB.log(n bigserial PRIMARY KEY, note text) TABLESPACE DB; CREATE INDEX ON DB.log(note) TABLESPACE DB;" +
			"CREATE TABLE DB.accounts(id bigint PRIMARY KEY, balance bigint) TABLESPACE DB; INSERT INTO DB.accounts SELECT i, 1000 FROM generate_series(1, 100) i;",
	}
	d.schema = "CREATE EXTENSION IF NOT EXISTS amcheck; CREATE TABLESPACE DB LOCATION 'DIR/space';" + d.schema
	return d
}

// in is SQL for the place of that number.
func (d *database) in(i int, sql string) string {
	name := fmt.Sprint("place", i)
	if i == 0 && d.begin != "" {
		name = "main"
	}
	return strings.NewReplacer("DB", name, "DIR", d.places[i]).Replace(sql)
}

// each is SQL for each place.
func (d *database) each(sql string) (all string) {
	for i := range d.places {
		all += d.in(i, sql)
	}
	return all
}

func (d *database) command(t *testing.T, sb *sandbox.Sandbox, script, sql string) *sandbox.Cmd {
	cmd := sb.Command(t.Context(), "/bin/sh", "-c", script)
	cmd.User, cmd.Env = d.user, []string{"BEGIN=" + d.begin, "SQL=" + sql, "TZ=UTC", "LC_ALL=C"}
	return cmd
}

// create makes the database.
func (d *database) create(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	for _, dir := range d.places {
		for _, dir := range []string{dir, dir + "/space"} {
			if err := sb.MkdirAll(t.Context(), dir, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := sb.Chown(t.Context(), dir, 70, 70); err != nil {
				t.Fatal(err)
			}
		}
	}
	script := `{ echo "$BEGIN"; echo "$SQL"; } | ` + d.client
	for _, first := range []string{d.start, d.make} {
		if first != "" {
			script = first + " && " + script
		}
	}
	if out, err := d.command(t, sb, script, d.each(d.schema)).CombinedOutput(); err != nil {
		t.Fatalf("create %s: %v\n%s", d.name, err, out)
	}
}

// A writer makes transactions until its sandbox's session ends.
type writer struct {
	cmd       *sandbox.Cmd
	committed atomic.Int64 // the number of the last transaction that the database has said to have
}

func (d *database) write(t *testing.T, sb *sandbox.Sandbox) *writer {
	t.Helper()
	w := &writer{cmd: d.command(t, sb, `{ echo "$BEGIN"; while :; do echo "$SQL"; done; } | `+d.client,
		"BEGIN;"+d.each(d.insert)+"COMMIT;"+d.in(0, "SELECT max(n) FROM DB.log;"))}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Stderr = t.Output()
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				w.committed.Store(n)
			}
		}
	}()
	return w
}

// more waits for transactions after that one.
func (w *writer) more(t *testing.T, than int64) {
	t.Helper()
	harness.Eventually(t, fmt.Sprint("more than ", than, " transactions are committed"), func() bool { return w.committed.Load() > than })
}

var audited = regexp.MustCompile(`ok[|\n]100000\|(\d+)`)

// numbers are those of the last transactions of a copy in each place. It is whole, as no mixture of two moments is, and has what was
// committed before.
func (d *database) numbers(t *testing.T, what string, copied *sandbox.Sandbox, before int64) (last []int64) {
	t.Helper()
	out, err := d.command(t, copied, `{ echo "$BEGIN"; echo "$SQL"; } | { `+d.audit+"; }", d.each(d.check)).CombinedOutput()
	for _, found := range audited.FindAllStringSubmatch(string(out), -1) {
		n, _ := strconv.ParseInt(found[1], 10, 64)
		last = append(last, n)
	}
	if err != nil || strings.Contains(string(out), "ERROR") || len(last) != len(d.places) || slices.Max(last)-slices.Min(last) > int64(d.apart) || slices.Max(last) < before {
		t.Fatalf("%s of %s: last transactions %v, %v, want %d places, %d apart at the most, not before %d\n%s", what, d.name, last, err, len(d.places), d.apart, before, out)
	}
	return last
}

// databaseImage has SQLite and PostgreSQL, and declares volumes.
func databaseImage(t *testing.T) string {
	t.Helper()
	programs := []string{"/bin/sh", "/bin/rm", "/usr/bin/sqlite3", strings.Replace(postgreSQLs(t), "/lib/", "/share/", 1)}
	for _, name := range []string{"bin/postgres", "bin/initdb", "bin/pg_ctl", "bin/pg_checksums", "bin/psql", "lib/amcheck.so", "lib/plpgsql.so", "lib/dict_snowball.so"} {
		programs = append(programs, filepath.Join(postgreSQLs(t), name))
	}
	content, _ := harness.Installed(t, programs...)
	files := harness.Tar(t, harness.TarMember{Header: tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}},
		harness.TarFile("etc/passwd", "root:x:0:0::/:/bin/sh\npostgres:x:70:70::/:/bin/sh\n"))
	var changes []string
	for _, v := range declared {
		changes = append(changes, "VOLUME "+v)
	}
	return harness.Image(t, append(files[:len(files)-1024], content...), changes...) // archives end with two empty blocks
}

// Databases that write all the time, in directories of every kind at once, are whole in each copy: the files of a fork, a snapshot and
// a rollback are of one moment, wherever they are, and nothing that was committed before is lost.
func TestCopiesOfDatabasesAreOfOneMoment(t *testing.T) {
	t.Parallel()
	for _, seed := range harness.Seeds(1, 12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { copiesOfDatabases(t, int(seed)) })
	}
}

func copiesOfDatabases(t *testing.T, seed int) {
	places := []string{"/var/lib/data/db", "/workspace/db", "/workspace/in/db", "/opt/db", "/the copy/db", "/var/lib/data/copy/db"}
	places = slices.Concat(places[seed%len(places):], places[:seed%len(places)])
	databases := []*database{sqlite("DELETE", 0, places), sqlite("WAL", 1, places), postgreSQL(t, places)}
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: t.TempDir(), Target: "/the copy"}, {Source: t.TempDir(), Target: "/var/lib/data/copy"}}, sandbox.WithImage(databaseImage(t)))
	for _, d := range databases {
		d.create(t, sb)
	}
	var writers []*writer
	write := func(after int64) {
		t.Helper()
		writers = nil
		for _, d := range databases {
			w := d.write(t, sb)
			w.more(t, after)
			writers = append(writers, w)
		}
	}
	committed := func() (all []int64) {
		for _, w := range writers {
			all = append(all, w.committed.Load())
		}
		return all
	}
	numbers := func(what string, copied *sandbox.Sandbox, before []int64) (all [][]int64) {
		t.Helper()
		for i, d := range databases {
			all = append(all, d.numbers(t, what, copied, before[i]))
		}
		return all
	}
	write(20)
	before := committed()
	numbers("fork", forked(t, c, sb.Name()), before)
	for i, w := range writers {
		w.more(t, before[i]) // the fork has left them alone
	}
	before = committed()
	two := forkedN(t, c, sb.Name(), 2)
	if diff := cmp.Diff(numbers("one of two forks", two[0], before), numbers("the other fork", two[1], before)); diff != "" {
		t.Errorf("two forks of one moment:\n%s", diff)
	}
	before = committed()
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	want := numbers("sandbox of a snapshot", harness.CreateWith(t, c, nil, fromSnap(snap)), before)
	for i, w := range writers {
		w.more(t, slices.Max(want[i]))
	}
	if err := sb.Rollback(t.Context(), snap.ID); err != nil { // it ends the writers
		t.Fatalf("Rollback: %v", err)
	}
	for _, w := range writers {
		w.cmd.Wait()
	}
	if diff := cmp.Diff(want, numbers("rollback", sb, before)); diff != "" {
		t.Errorf("rolled back (-sandbox of the snapshot +rolled back):\n%s", diff)
	}
}
