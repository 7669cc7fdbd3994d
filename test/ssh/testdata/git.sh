# git, over OpenSSH's ssh.
export GIT_SSH_COMMAND="ssh -F $PWD/config" GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=C GIT_COMMITTER_EMAIL=c@example.org GIT_AUTHOR_DATE='1234567890 +0100' GIT_COMMITTER_DATE='1234567890 +0100'
ssh="$GIT_SSH_COMMAND box"
repository="$THERE/repo.git"
url="box:$repository"
do_git() { timeout 500 git "$@" 2>&1; echo "git $1 $?"; }
refs() { $ssh "git -C '$repository' for-each-ref; git -C '$repository' fsck --full --strict 2>&1; echo fsck \$?"; }
$ssh "git init -q --bare --initial-branch=main '$repository'"
do_git clone -q "$url" empty
git init -q --initial-branch=main work
cp -r here/. work; ln -s a work/link; chmod 755 work/sub/b
cd work
git add -A; git commit -q -m first; git tag -a -m 'a tag' v1; git checkout -q -b side; echo side >a; git commit -q -a -m side; git checkout -q main
git remote add origin "$url"
do_git push -u origin main side --tags
do_git push origin main
refs
# Hooks: what they write, what they are given, and what they refuse.
$ssh "cd '$repository/hooks' && cat >update && cp update pre-receive && cp update post-receive && chmod 755 update pre-receive post-receive" <<'END'
#!/bin/sh
hook=${0##*/}
echo "$hook $* in ${PWD##*/}"
echo "and an error" >&2
env | grep -e ^GIT_PUSH | sort
[ $hook = update ] || cat
[ "$hook $1" != "update refs/heads/forbidden" ] && [ ! -e "$GIT_DIR/refuse" ]
END
echo more >>a; git commit -q -a -m second
do_git push origin main
do_git push origin main:forbidden main:allowed
do_git push --atomic origin main:forbidden main:other
$ssh touch "$repository/refuse"
do_git push origin side:refused
$ssh "rm '$repository/refuse'; git -C '$repository' config receive.advertisePushOptions true; git -C '$repository' config uploadpack.allowFilter true"
do_git push -o one -o 'two words' origin main:options
refs
# Fetches of every kind.
cd ..
for version in 0 2; do
	do_git -c protocol.version=$version clone -q "$url" clone$version
	(cd clone$version && git for-each-ref && git status --porcelain -b && git log --all --format='%H %s' && git ls-files -s && cat .git/HEAD)
done
do_git clone -q --mirror "$url" mirror; git -C mirror for-each-ref
do_git clone -q --depth 1 --branch side "$url" shallow; git -C shallow log --format=%s
(cd shallow && do_git fetch -q --unshallow && git log --format=%s)
do_git clone -q --filter=blob:none --no-checkout "$url" partial
(cd partial && do_git checkout -q main && git ls-files -s)
do_git archive --remote="$url" --format=tar -o here.tar main; tar -tvf here.tar
do_git ls-remote "$url"
do_git ls-remote "ssh://box$repository" 'v*'
# A history that is not the server's.
cd clone2; echo other >>a; git commit -q -a -m other
cd ../work; echo mine >>a; git commit -q -a -m mine; do_git push -q origin main
cd ../clone2
do_git push origin main
do_git fetch origin; git for-each-ref
do_git push --force-with-lease=main:v1 origin main
do_git push --force origin main
do_git push origin --delete options allowed
do_git push origin 'v1^{commit}:refs/tags/light'
cd ../clone0
do_git fetch --prune --tags origin; git for-each-ref
do_git pull --no-rebase --no-edit origin side; git status --porcelain
refs
# So much that a pack stays one.
cd ..; git init -q --initial-branch=many many; cd many
i=0; while [ $i -lt 150 ]; do head -c 20000 /dev/urandom >f$i; i=$((i+1)); done
git add -A; git commit -q -m many; git push -q "$url" many >/dev/null 2>&1; echo "push $?"
do_git clone -q --single-branch --branch many "$url" ../many2
[ "$(git rev-parse HEAD)" = "$(git -C ../many2 rev-parse HEAD)" ]; echo "the same commit $?"
cd ..
# Errors.
do_git clone -q "box:$THERE/nothing" none
do_git clone -q box:~nobody-here/repo.git none
do_git ls-remote -q --upload-pack=no-such "$url"
do_git clone -q -b no-such "$url" none
rm -rf work clone? mirror shallow partial empty many many2 here.tar
$ssh rm -r "$repository"
