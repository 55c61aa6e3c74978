# Settings and functions of the cluster's scripts; sourced, not run. Everything lives under $KUBE_DIR: remove that
# folder and the cluster is gone. Cache $KUBE_DIR/bin and $KUBE_DIR/images between machines.
set -euo pipefail
export KUBE_DIR=${KUBE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sandman-grader/kube}
export KUBE_API_PORT=${KUBE_API_PORT:-16443} # not the usual ports: nothing of the machine's own is in the way
export KUBE_ETCD_PORT=${KUBE_ETCD_PORT:-12379}
export KUBE_POD_CIDR=${KUBE_POD_CIDR:-10.88.0.0/16}
export KUBE_SERVICE_CIDR=${KUBE_SERVICE_CIDR:-10.96.0.0/16}
export KUBE_NODE=${KUBE_NODE:-node1}
gateway=${KUBE_POD_CIDR%.*}.1 # the bridge's address, which is the node's own too
bin=${KUBE_BIN:-$KUBE_DIR/bin} run=$KUBE_DIR/run log=$KUBE_DIR/log pki=$KUBE_DIR/pki images=$KUBE_DIR/images
etcd_data=${KUBE_ETCD_DATA:-/dev/shm/sandman-etcd} # in memory: a sync costs nothing there
containerd_socket=$run/containerd.sock
export KUBECONFIG=$pki/admin.kubeconfig
export PATH=$bin:$PATH
mkdir -p "$bin" "$run" "$log" "$pki" "$images"

# alive NAME: whether the process that `start` began still runs.
alive() { [ -f "$run/$1.pid" ] && kill -0 "$(cat "$run/$1.pid")" 2>/dev/null; }

# start NAME COMMAND...: run it in the background, in a session of its own; its process id and output go to files.
start() {
  local name=$1
  shift
  ! alive "$name" || return 0
  setsid nohup "$@" >"$log/$name.log" 2>&1 </dev/null &
  echo $! >"$run/$name.pid"
}

# stop NAME: end what `start` began, by its process id, and wait for it.
stop() {
  if alive "$1"; then
    local pid
    pid=$(cat "$run/$1.pid")
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -f "$run/$1.pid"
}

# wait_for SECONDS NAME COMMAND...: until COMMAND succeeds; fails at once, with the end of the log, when NAME has died.
wait_for() {
  local limit=$1 name=$2 began=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ! alive "$name" || ((SECONDS - began >= limit)); then
      echo "$name has died or is not ready after $limit s; the end of its log:" >&2
      tail -n 20 "$log/$name.log" >&2
      return 1
    fi
    sleep 0.1
  done
}

# debian_uri LABEL: the mirror that the machine's own apt configuration names (LABEL is Debian or Debian-Security).
debian_uri() { apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$1|//p" | head -n 1; }

# without_ours ALSO_THE_KUBELETS: what `iptables-save` printed, on stdin, without the chains of our pod network, told by its
# name in their rules' comments; and with 1 without those of the kubelet, whose names are the same for every kubelet.
without_ours() {
  awk -v kubelets="$1" '
    { lines[NR] = $0 }
    /--comment "name: \\"ci\\" id: / && match($0, /CNI-[0-9a-f]+/) { ours[substr($0, RSTART, RLENGTH)] }
    END {
      for (n = 1; n <= NR; n++) {
        if (match(lines[n], /CNI-[0-9a-f]+/) && substr(lines[n], RSTART, RLENGTH) in ours) continue
        if (kubelets && lines[n] ~ /KUBE-/) continue
        print lines[n]
      }
    }'
}

# lacks WHAT: say what this machine has not, and that so much of the cluster cannot be brought up on it.
lacks() { echo "tests/cluster: this machine lacks $1" >&2; }

# set_sysctl NAME VALUE: and note the value that it had, for `stop`.
set_sysctl() {
  local before
  before=$(sysctl -n "$1")
  [ "$before" != "$2" ] || return 0
  echo "$1=$before" >>"$run/sysctls"
  sysctl -qw "$1=$2"
}
