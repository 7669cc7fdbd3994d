package main

// examples has those of each command's help, by its path.
var examples = map[string]string{
	"sandbox": `
sandbox run -- node -p '6*7'
sandbox create --name build --from .
sandbox exec build -- npm test`,
	"sandbox create": `
sandbox create --name build --git https://example.com/app.git
sandbox create --name web --port 8080 --tag team=a -- node server.js
sandbox create --name tests --runtime python3.13 --memory 1g --network deny-all`,
	"sandbox run": `
sandbox run -- node -p '6*7'
sandbox run -it --image python:3.13 -- python
sandbox run --from . --network deny-all -- npm test`,
	"sandbox list": `
sandbox list --status running --tag team=a
sandbox list --format '{{.Name}} {{.State}}'
sandbox stop $(sandbox list -q --prefix test-)`,
	"sandbox move": `
sandbox --swarm move build node2`,
	"sandbox describe": `
sandbox describe build
sandbox show build web`,
	"sandbox inspect": `
sandbox inspect build | jq .settings
sandbox inspect --format '{{.Workspace.Size}}' build web`,
	"sandbox start": `
sandbox start build
sandbox start build web`,
	"sandbox stop": `
sandbox stop build
sandbox stop build web`,
	"sandbox update": `
sandbox update --memory 4g --vcpus 2 build
sandbox update --port 8080 --without-tag team web -- node server.js`,
	"sandbox network": `
sandbox network build
sandbox network build deny-all
sandbox network build 'allow=registry.npmjs.org,*.github.com'`,
	"sandbox network check": `
sandbox network check --sandbox build registry.npmjs.org
sandbox network check --policy 'allow=*.github.com' api.github.com:443 example.com`,
	"sandbox delete": `
sandbox delete build
sandbox rm --delete-volumes --yes build web`,
	"sandbox exec": `
sandbox exec build -- npm test
tar c src | sandbox exec -i build -- tar x
sandbox exec -it build -- vim notes.md
sandbox exec --detach build -- node server.js`,
	"sandbox shell": `
sandbox shell build
sandbox shell -u node -w /tmp build`,
	"sandbox processes": `
sandbox processes build
sandbox processes --json build | jq '.[] | select(.running)'`,
	"sandbox kill": `
sandbox kill build $(sandbox exec --detach build -- sleep 1000)
sandbox kill --signal HUP web 3f2a91c04b7d`,
	"sandbox logs": `
sandbox logs --tail 100 --follow web
sandbox logs --since 10m --timestamps web`,
	"sandbox cp": `
sandbox cp src build:src
sandbox cp src/. build:
sandbox cp build:dist/app.js .
sandbox cp build: dir`,
	"sandbox proxy": `
ssh -o ProxyCommand='sandbox proxy %n' build.sandbox`,
	"sandbox ssh-config": `
sandbox ssh-config >>~/.ssh/config
ssh build.sandbox`,
	"sandbox fork": `
sandbox fork build --name other
sandbox fork build --name try --count 4`,
	"sandbox snapshot": `
sandbox snapshot create --name tested build
sandbox snapshot list --sandbox build`,
	"sandbox snapshot create": `
sandbox snapshot create build
sandbox snapshot create --name nightly --keep-last 7 build`,
	"sandbox snapshot list": `
sandbox snapshot list --sandbox build
sandbox snapshot list --format '{{.ID}} {{.Name}}'`,
	"sandbox snapshot show": `
sandbox snapshot show 3f2a91c04b7d | jq .parent`,
	"sandbox snapshot delete": `
sandbox snapshot delete 3f2a91c04b7d
sandbox snapshot rm --yes $(sandbox snapshot list -q --name nightly)`,
	"sandbox snapshot tree": `
sandbox snapshot tree`,
	"sandbox rollback": `
sandbox rollback build 3f2a91c04b7d`,
	"sandbox egress": `
sandbox egress build
sandbox egress --json build | jq '.[] | select(.allowed | not)'`,
	"sandbox watch": `
sandbox watch | jq --unbuffered -r 'select(.event == "stopped") | .name'
sandbox watch --tag team=a --denied`,
	"sandbox top": `
sandbox top
sandbox top --once --tag team=a
sandbox top --json | jq 'select(.memoryBytes > 1e9) | .name'`,
	"sandbox volume": `
sandbox volume list
sandbox volume cleanup --min-age 7d`,
	"sandbox volume list": `
sandbox volume list
sandbox volume list --format '{{.Name}} {{.Size}}'`,
	"sandbox volume orphans": `
sandbox volume orphans
sandbox volume orphans -q`,
	"sandbox volume delete": `
sandbox volume delete agent-sandbox-3f2a91c04b7d
sandbox volume rm --force --yes agent-sandbox-3f2a91c04b7d`,
	"sandbox volume cleanup": `
sandbox volume cleanup --dry-run
sandbox volume cleanup --role rwcopy --min-age 7d --yes`,
	"sandbox node": `
sandbox --swarm node list`,
	"sandbox node list": `
sandbox --swarm node list
sandbox --swarm node list --format '{{.Name}} {{.FreeCPUs}}'`,
	"sandbox health": `
sandbox health
sandbox -H ssh://me@build.example.com health --json`,
	"sandbox prune": `
sandbox prune`,
	"sandbox conform": `
sandbox conform
sandbox conform --only snapshot --only fork`,
	"sandbox serve": `
sandbox serve
sandbox serve --listen 127.0.0.1:9000 --token-file token`,
	"sandbox mcp": `
sandbox mcp --image node:20-bookworm --image python:3.13
sandbox mcp --network 'allow=registry.npmjs.org' --mount "$PWD:/src:ro"`,
	"sandbox version": `
sandbox version`,
}
