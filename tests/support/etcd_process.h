// SPDX-License-Identifier: Apache-2.0
// Starts real etcd servers on free loopback ports, each with a directory of its own.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/endpoint.h"
#include "common/error.h"
#include "common/socket.h"
#include "common/text.h"
#include "tests/support/temp_directory.h"

namespace ddprun::test {

inline constexpr char kNoEtcd[] = "no etcd here: apt-get install etcd-server";

inline bool has_etcd() {
  for (const char* path : {"/usr/bin/etcd", "/usr/local/bin/etcd"}) {
    if (std::filesystem::exists(path)) return true;
  }
  return false;
}

// Returns loopback endpoints whose ports were free a moment ago.
inline std::vector<Endpoint> free_endpoints(std::size_t count) {
  std::vector<UniqueFd> listeners;
  std::vector<Endpoint> endpoints;
  for (std::size_t i = 0; i < count; ++i) {
    listeners.push_back(listen_on(resolve({"127.0.0.1", 0}).front()));
    endpoints.push_back({"127.0.0.1", local_address(listeners.back().get()).port()});
  }
  return endpoints;
}

// One member of a cluster. It may not answer yet when start() returns; clients wait for it.
class EtcdProcess {
 public:
  struct Place {
    std::string name = "m0";
    Endpoint client, peer;
  };
  struct TlsFiles {  // for the clients' port; empty: without TLS
    std::string cert, key, ca;
  };

  EtcdProcess(Place place, std::string cluster, TlsFiles tls = {},
              std::vector<std::string> further = {})
      : place_(std::move(place)),
        cluster_(std::move(cluster)),
        tls_(std::move(tls)),
        further_(std::move(further)) {}
  ~EtcdProcess() { kill(); }
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  const Endpoint& endpoint() const { return place_.client; }

  void start() {
    const std::string scheme = tls_.cert.empty() ? "http://" : "https://";
    const std::string client = scheme + to_string(place_.client);
    const std::string peer = "http://" + to_string(place_.peer);
    std::vector<std::string> words{"etcd",
                                   "--name=" + place_.name,
                                   "--data-dir=" + directory_.path("data"),
                                   "--listen-client-urls=" + client,
                                   "--advertise-client-urls=" + client,
                                   "--listen-peer-urls=" + peer,
                                   "--initial-advertise-peer-urls=" + peer,
                                   "--initial-cluster=" + cluster_,
                                   "--logger=zap",
                                   "--log-level=error"};
    if (!tls_.cert.empty()) {
      words.insert(words.end(), {"--cert-file=" + tls_.cert, "--key-file=" + tls_.key,
                                 "--trusted-ca-file=" + tls_.ca, "--client-cert-auth"});
    }
    words.insert(words.end(), further_.begin(), further_.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string log = directory_.path("log");
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw_system_error("fork", errno);
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, 1), ::dup2(out, 2);
    ::execvp("etcd", argv.data());
    ::_exit(127);
  }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Stops the process. Returns when all its threads stand still.
  void pause() {
    siginfo_t stopped{};
    ::kill(pid_, SIGSTOP);
    while (::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED) != 0 && errno == EINTR) {
    }
  }
  void go_on() { ::kill(pid_, SIGCONT); }

 private:
  const Place place_;
  const std::string cluster_;
  const TlsFiles tls_;
  const std::vector<std::string> further_;  // further flags
  const TempDirectory directory_;
  pid_t pid_ = -1;
};

class EtcdCluster {
 public:
  explicit EtcdCluster(std::size_t num_members, const EtcdProcess::TlsFiles& tls = {},
                       const std::vector<std::string>& flags = {}) {
    const std::vector<Endpoint> ports = free_endpoints(num_members * 2);
    std::string cluster;
    for (std::size_t i = 0; i < num_members; ++i) {
      cluster += concat(i == 0 ? "" : ",", "m", i, "=http://", to_string(ports[2 * i + 1]));
    }
    for (std::size_t i = 0; i < num_members; ++i) {
      members.push_back(std::make_unique<EtcdProcess>(
          EtcdProcess::Place{concat("m", i), ports[2 * i], ports[2 * i + 1]}, cluster, tls, flags));
      members.back()->start();
    }
  }

  std::vector<Endpoint> endpoints() const {
    std::vector<Endpoint> endpoints;
    for (const auto& member : members) endpoints.push_back(member->endpoint());
    return endpoints;
  }

  std::vector<std::unique_ptr<EtcdProcess>> members;
};

}  // namespace ddprun::test
