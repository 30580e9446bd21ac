// SPDX-License-Identifier: Apache-2.0
// ddprund: the rendezvous daemon.
#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/ending.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/peer_user.h"
#include "common/process_facts.h"
#include "common/secret.h"
#include "common/service_manager.h"
#include "common/signal_names.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "common/unique_fd.h"
#include "rendezvous/daemon/command_line.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/systemd_notifier.h"
#include "rendezvous/ha/leadership.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;
using rendezvous::DaemonFlags;

// ddprund's log, whose reader may be stuck. A line without room at once is dropped. The next
// written line follows one that says how many were dropped. A line is cut to 4096 bytes (512 on a
// terminal), as many as poll(2)'s "writable" guarantees. `fd`, which other processes may share,
// stays in blocking mode. Lines about strangers have their own limit (log_about_peer()).
class DroppingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DroppingSink(int fd) : fd_(fd), max_bytes_(::isatty(fd) == 1 ? 512 : PIPE_BUF) {}

 private:
  using Message = spdlog::details::log_msg;

  void sink_it_(const Message& message) override {
    bool is_taken = false;
    if (num_dropped_ == 0) {
      is_taken = take(nullptr, message);
    } else {
      const std::string text =
          concat(num_dropped_, " line(s) of this log were dropped: nobody took them");
      const Message dropped{message.time, {}, message.logger_name, spdlog::level::warn, text};
      is_taken = take(&dropped, message);
    }
    num_dropped_ = is_taken ? 0 : num_dropped_ + 1;
  }
  void flush_() override {}

  // Writes without waiting; returns false if there is no room now. It uses one write, since a
  // writable pipe may be full after it. `dropped`, the line about dropped lines, comes first; null:
  // none.
  bool take(const Message* dropped, const Message& message) {
    if (!is_ready(fd_, POLLOUT)) return false;
    spdlog::memory_buf_t lines;
    if (dropped != nullptr) append(*dropped, lines);
    append(message, lines);
    if (lines.size() > max_bytes_) {
      lines.resize(max_bytes_);
      lines[max_bytes_ - 1] = '\n';
    }
    [[maybe_unused]] const ssize_t written = ::write(fd_, lines.data(), lines.size());
    return true;
  }

  void append(const Message& message, spdlog::memory_buf_t& lines) {
    const LogLevel level = message.level >= spdlog::level::err    ? LogLevel::kError
                           : message.level == spdlog::level::warn ? LogLevel::kWarning
                           : message.level == spdlog::level::info ? LogLevel::kInfo
                                                                  : LogLevel::kDebug;
    const std::string_view prefix = journal_prefix(level);
    lines.append(prefix.data(), prefix.data() + prefix.size());
    formatter_->format(message, lines);
  }

  const int fd_;
  const std::size_t max_bytes_;
  std::uint64_t num_dropped_ = 0;
};

// The service that the flags ask for: a single Daemon, or one of several. I/O thread only.
class DaemonVariant {
 public:
  // Serves on `listeners`; if none, on the port of --listen. Throws Error if a file, a directory or
  // the port can't be used.
  DaemonVariant(boost::asio::io_context& io, const DaemonFlags& flags,
                std::vector<UniqueFd> listeners)
      : flags_(flags) {
    rendezvous::DaemonOptions options = flags.daemon;
    static_cast<rendezvous::PortSecurity&>(options) = port_security();
    std::optional<rendezvous::KeptJobs> kept;
    if (flags.state_directory) {
      auto file = std::make_unique<journal::JournalFile>(*flags.state_directory, flags.durability);
      kept.emplace();
      kept->content = file->load();
      kept->writer = std::move(file);
    }
    if (listeners.empty()) {
      listeners = flags.listen.host.empty() ? rendezvous::bind_everywhere(flags.listen.port)
                                            : rendezvous::bind_endpoint(flags.listen);
    }
    for (const UniqueFd& listener : listeners) addresses_.push_back(local_address(listener.get()));
    check_who_can_come_in();
    std::optional<ha::LeadershipOptions> leadership;
    if (flags.ha) leadership = leadership_options();
    daemon_ = std::make_unique<rendezvous::Daemon>(io, std::move(listeners), std::move(options),
                                                   std::move(kept));
    if (leadership) ask_for(io, *std::move(leadership));
  }
  DaemonVariant(const DaemonVariant&) = delete;
  DaemonVariant& operator=(const DaemonVariant&) = delete;

  // Reads the files of --token-file and --tls-… again, for later connections. Returns false if
  // there are none. Throws Error if one of them can't be used, and then changes nothing.
  bool reload() {
    // The etcd client keeps its first certificates.
    if (flags_.token_file.empty() && !flags_.tls.any()) return false;
    daemon_->set_security(port_security());
    return true;
  }

  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  const rendezvous::Daemon& daemon() const { return *daemon_; }
  // Returns whether another ddprund goes on with the jobs when this one ends.
  bool has_others() const { return leadership_ != nullptr; }

 private:
  rendezvous::PortSecurity port_security() const {
    rendezvous::PortSecurity security;
    if (!flags_.token_file.empty()) {
      security.token = Secret::from_flag("--token-file", flags_.token_file);
    }
    if (!flags_.scrape_token_file.empty()) {
      security.scrape_token = Secret::from_flag("--scrape-token-file", flags_.scrape_token_file);
    }
    if (flags_.tls.any()) security.tls = security::make_server_context(flags_.tls);
    return security;
  }

  void check_who_can_come_in() const {
    if (!flags_.token_file.empty() || flags_.tls.any()) return;
    if (const std::string hint = user_namespace_hint(); !hint.empty()) {
      log_warning("other users' nodes are refused", hint);
    }
    if (flags_.is_insecure) return;
    for (const SocketAddress& address : addresses_) {
      if (address.is_loopback()) continue;
      throw_invalid("won't serve at ", address.text(),
                    " without --token-file or TLS: anyone who reaches it could join and end "
                    "jobs and read their keys. On a network that is trusted: --insecure");
    }
  }

  ha::LeadershipOptions leadership_options() const {
    ha::LeadershipOptions leadership;
    leadership.etcd.endpoints = flags_.ha->endpoints;
    if (flags_.ha_tls.any()) leadership.etcd.tls = security::make_client_context(flags_.ha_tls);
    leadership.prefix = flags_.ha->prefix;
    leadership.lease = flags_.ha_lease;
    leadership.name = flags_.ha_name;
    if (leadership.name.empty()) {
      leadership.name = to_string(Endpoint{host_name(), addresses_.front().port()});
    }
    return leadership;
  }

  void ask_for(boost::asio::io_context& io, ha::LeadershipOptions leadership) {
    ha::Leadership::Handlers handlers;
    handlers.leads = [this](ha::Term term) {
      log_info("leads, epoch ", term.epoch);
      const auto deposed = [this, epoch = term.epoch](const std::string& why) {
        leadership_->resign(epoch, why);
      };
      daemon_->lead({std::move(term.writer), std::move(term.content), deposed});
    };
    handlers.over = [this](const std::string& why) {
      log_warning("leads no more: ", why, "; its agents look for the next leader");
      daemon_->stand_by("");
    };
    handlers.stands_by = [this, own = leadership.name](const std::string& leader) {
      daemon_->stand_by(leader == own ? "" : leader);
      log_info("stands by: ", leader.empty() ? "one without a usable name" : leader,
               leader == own ? ", this one a moment ago, led" : " leads");
    };
    handlers.etcd_is = [this](const std::string& trouble) { daemon_->note_etcd(trouble); };
    leadership_ = std::make_unique<ha::Leadership>(io, std::move(leadership), std::move(handlers));
  }

  const DaemonFlags flags_;
  std::vector<SocketAddress> addresses_;
  // Set if this is one of several, which leads or stands by as the lease in etcd says (docs/ha.md).
  // It must be declared before daemon_: that first closes every connection; then the leadership is
  // given up, and another ddprund may lead.
  std::unique_ptr<ha::Leadership> leadership_;
  std::unique_ptr<rendezvous::Daemon> daemon_;
};

void write_log(LogLevel level, std::string_view message) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  spdlog::log(kLevels[static_cast<int>(level)], "{}", one_line(message));
}

void set_up_log(bool verbose) {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("ddprund", std::make_shared<DroppingSink>(STDERR_FILENO)));
  spdlog::set_level(spdlog::level::debug);  // common/log.h filters by its own level
  // systemd's journal has its own time and priority.
  spdlog::set_pattern(stderr_is_journal() ? "%v" : "%Y-%m-%dT%H:%M:%S.%e %l: %v");
  set_log_level(verbose ? LogLevel::kDebug : LogLevel::kInfo);
  set_log_sink(write_log);
}

int fail(const std::string& message, ExitCode code) {
  std::fprintf(stderr, "%sddprund: %s\n", std::string(journal_prefix(LogLevel::kError)).c_str(),
               one_line(message).c_str());
  return static_cast<int>(code);
}

void say_end(int signal_number, const DaemonVariant& served, const DaemonFlags& flags) {
  const std::vector<std::string> jobs = served.daemon().live_jobs();
  const std::string trouble = served.daemon().journal_trouble();
  const std::string names = listed(jobs);
  if (jobs.empty()) {
    log_info("stopping: ", signal_name(signal_number));
  } else if (served.has_others()) {  // others go on with the jobs at once
    log_info("stopping: ", signal_name(signal_number), "; another ddprund goes on with: ", names);
  } else if (!trouble.empty()) {
    log_warning(
        "stopping: ", signal_name(signal_number), "; ", trouble,
        "; that is tried once more; else these jobs go on from what was kept before, or end "
        "with 75: ",
        names);
  } else if (flags.state_directory) {
    log_warning("stopping: ", signal_name(signal_number),
                "; jobs go on when a ddprund with this "
                "--state-dir is back within their --rendezvous-lost-timeout (60 s): ",
                names);
  } else {
    log_warning("stopping: ", signal_name(signal_number), "; jobs lose their rendezvous: ", names,
                " (their workers run on for --rendezvous-lost-timeout; then they end with 69)");
  }
}

// Logs, for an address beyond loopback, who can join jobs there.
void say_who_can_come_in(const SocketAddress& address, const DaemonFlags& flags) {
  const bool is_closed = !flags.token_file.empty() || flags.tls.verify_client;
  if (is_closed && !flags.tls.cert.empty()) {
    log_info("only agents that prove to have the ", flags.token_file.empty() ? "" : "token",
             !flags.token_file.empty() && flags.tls.verify_client ? " and the " : "",
             flags.tls.verify_client ? "certificate" : "", " can join jobs at ", address.text(),
             ", over TLS");
  } else if (is_closed) {
    log_info("only agents that prove to have the token can join jobs at ", address.text(),
             "; connections are not encrypted (--tls-cert)");
  } else {
    log_warning("anyone who reaches ", address.text(),
                " can join and end jobs and read their keys: use it on a trusted network only, or "
                "with --token-file");
  }
}

std::string status_of(const DaemonVariant& served) {
  const std::string addresses =
      "listening on " + listed(served.addresses(), ", ", &SocketAddress::text);
  if (!served.daemon().leads()) return addresses + "; stands by";
  const std::size_t num_jobs = served.daemon().live_jobs().size();
  return concat(addresses, "; ", counted(num_jobs, "job"));
}

int serve(const DaemonFlags& flags, ServiceManager manager) {
  boost::asio::io_context io(1);
  boost::asio::signal_set signals(io, SIGTERM, SIGINT, SIGQUIT);
  rendezvous::SystemdNotifier service(io, std::move(manager));
  std::optional<DaemonVariant> variant;  // before the first call from io
  service.outlive_signals("serving on", [&variant] { return variant->reload(); });
  DaemonVariant& served = variant.emplace(io, flags, service.take_listeners());
  signals.async_wait([&](boost::system::error_code error, int number) {
    if (error) return;
    service.stopping();
    say_end(number, served, flags);
    io.stop();
  });
  // Logged when all is ready: programs that wait for this line may connect, or end ddprund, from
  // now on.
  for (const SocketAddress& address : served.addresses()) {
    log_info("listening on ", address.text());
    if (!address.is_loopback()) say_who_can_come_in(address, flags);
  }
  service.ready([&served] { return status_of(served); });
  io.run();
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

int main(int argc, char** argv) {
  security::wipe_what_is_freed();
  open_standard_streams();
  ServiceManager manager;
  try {
    manager = ServiceManager::take_from_environment();
  } catch (const Error& error) {
    return fail(error.what(), exit_code_for(error.code()));
  }
  const rendezvous::CommandLine asked = rendezvous::parse_command_line(argc, argv);
  if (!asked.flags) return asked.exit_status;
  set_up_log(asked.flags->verbose);
  try {
    return serve(*asked.flags, std::move(manager));
  } catch (const std::exception& error) {
    const Ending ending = ending_by(error);
    return fail(ending.text, ending.code);
  }
}
