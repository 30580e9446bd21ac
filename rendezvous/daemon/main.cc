// SPDX-License-Identifier: Apache-2.0
// ddprund: the rendezvous daemon.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/ending.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/journal_prefix.h"
#include "common/log.h"
#include "common/service_manager.h"
#include "common/signal_names.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "rendezvous/daemon/command_line.h"
#include "rendezvous/daemon/dropping_sink.h"
#include "rendezvous/daemon/served.h"
#include "rendezvous/daemon/service.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;
using rendezvous::DaemonFlags;

void write_log(LogLevel level, std::string_view message) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  spdlog::log(kLevels[static_cast<int>(level)], "{}", one_line(message));
}

void set_up_log(bool verbose) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "ddprund", std::make_shared<rendezvous::DroppingSink>(STDERR_FILENO)));
  spdlog::set_level(spdlog::level::debug);  // common/log.h drops what is below its level
  // The journal has a time and a priority of its own.
  spdlog::set_pattern(stderr_is_journal() ? "%v" : "%Y-%m-%dT%H:%M:%S.%e %l: %v");
  set_log_level(verbose ? LogLevel::kDebug : LogLevel::kInfo);
  set_log_sink(write_log);
}

int fail(const std::string& message, ExitCode code) {
  std::fprintf(stderr, "%sddprund: %s\n", std::string(journal_prefix(LogLevel::kError)).c_str(),
               one_line(message).c_str());
  return static_cast<int>(code);
}

// Signals that would end it by default, and every job with it: a terminal that closes, a scheduler
// that warns all processes of a node.
void outlive_signals(boost::asio::signal_set& signals) {
  signals.async_wait([&signals](boost::system::error_code error, int number) {
    if (error) return;
    log_info("got ", signal_name(number), ": serving on (SIGTERM ends it)");
    outlive_signals(signals);
  });
}

void say_end(int signal_number, const rendezvous::Served& served, const DaemonFlags& flags) {
  const std::vector<std::string> jobs = served.live_jobs();
  const std::string trouble = served.journal_trouble();
  std::string names;
  for (const std::string& job : jobs) names += (names.empty() ? "" : ", ") + job;
  if (jobs.empty()) {
    log_info("stopping: ", signal_name(signal_number));
  } else if (served.has_others()) {  // that go on with them at once
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

// Said once for each address that others may reach.
void say_who_can_come_in(const SocketAddress& address, const DaemonFlags& flags) {
  const bool is_closed = !flags.token_file.empty() || flags.tls.verify_client;
  if (is_closed && !flags.tls.cert.empty()) {
    log_info("only who proves to have the ", flags.token_file.empty() ? "" : "token",
             !flags.token_file.empty() && flags.tls.verify_client ? " and the " : "",
             flags.tls.verify_client ? "certificate" : "", " can join jobs at ", address.text(),
             ", over TLS");
  } else if (is_closed) {
    log_info("only who proves to have the token can join jobs at ", address.text(),
             "; what is said there can be read on the way");
  } else {
    log_warning("anyone who reaches ", address.text(),
                " can join jobs and read their keys: use it on a trusted network only, or with "
                "--token-file");
  }
}

std::string status_of(const rendezvous::Served& served) {
  std::string addresses;
  for (const SocketAddress& address : served.addresses()) {
    addresses += concat(addresses.empty() ? "listening on " : ", ", address.text());
  }
  if (!served.leads()) return addresses + "; stands by";
  const std::size_t num_jobs = served.live_jobs().size();
  return concat(addresses, "; ", num_jobs, num_jobs == 1 ? " job" : " jobs");
}

void reload(rendezvous::Served& served, rendezvous::Service& service) {
  service.reloading();
  try {
    log_info("got SIGHUP: ", served.reload() ? "the token and the certificates are read again"
                                             : "no file to read again; serving on");
  } catch (const Error& error) {
    log_error("got SIGHUP: ", error.what(), "; what was read before stays in force");
  }
  service.reloaded();
}

// A terminal that closes sends it, too: it never ends jobs.
void reload_by_signal(boost::asio::signal_set& hang_up, rendezvous::Served& served,
                      rendezvous::Service& service) {
  hang_up.async_wait([&](boost::system::error_code error, int) {
    if (error) return;
    reload(served, service);
    reload_by_signal(hang_up, served, service);
  });
}

int serve(const DaemonFlags& flags, ServiceManager manager) {
  boost::asio::io_context io(1);
  boost::asio::signal_set signals(io, SIGTERM, SIGINT, SIGQUIT);
  boost::asio::signal_set outlived(io, SIGUSR1, SIGUSR2), hang_up(io, SIGHUP);
  outlive_signals(outlived);
  rendezvous::Service service(io, std::move(manager));
  rendezvous::Served served(io, flags, service.take_listeners());
  reload_by_signal(hang_up, served, service);
  signals.async_wait([&](boost::system::error_code error, int number) {
    if (error) return;
    service.stopping();
    say_end(number, served, flags);
    io.stop();
  });
  // Said when all is in place: who waits for this line may connect, or end us, from then on.
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
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more must not end the jobs
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write, with its words
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
