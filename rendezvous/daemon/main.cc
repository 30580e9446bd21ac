// SPDX-License-Identifier: Apache-2.0
// ddprund: the rendezvous daemon.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <string>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"

namespace {

using namespace ddprun;

void write_log(LogLevel level, std::string_view message) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  spdlog::log(kLevels[static_cast<int>(level)], "{}", message);
}

void set_up_log(bool verbose) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("ddprund"));
  spdlog::set_level(spdlog::level::debug);  // common/log.h drops what is below its level
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l: %v");
  set_log_level(verbose ? LogLevel::kDebug : LogLevel::kInfo);
  set_log_sink(write_log);
}

int fail(const std::string& message) {
  std::fprintf(stderr, "ddprund: %s\n", message.c_str());
  return static_cast<int>(ExitCode::kUsage);
}

int serve(const Endpoint& endpoint) {
  auto listeners = rendezvous::bind_endpoint(endpoint);
  for (const UniqueFd& listener : listeners) {
    const SocketAddress address = local_address(listener.get());
    log_info("listening on ", address.text());
    if (!address.is_loopback()) {
      log_warning("anyone who reaches ", address.text(),
                  " can join jobs and read their keys: use it on a trusted network only");
    }
  }
  boost::asio::io_context io(1);
  rendezvous::DaemonOptions options;
  rendezvous::Daemon daemon(io, std::move(listeners), options);
  boost::asio::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&](boost::system::error_code error, int number) {
    if (error) return;
    log_info("stopping: signal ", number);
    io.stop();
  });
  io.run();
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("ddprund: the rendezvous of distributed jobs (see docs/rendezvous.md)", "ddprund");
  std::string listen = "127.0.0.1:29400";
  bool verbose = false;
  app.add_option("--listen", listen, "HOST:PORT to serve; port 0 = any free one")
      ->capture_default_str();
  app.add_flag("--verbose", verbose, "Log at debug level");
  app.set_version_flag("--version", "ddprund " DDPRUN_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (see ddprund --help)");
  }
  const auto endpoint = parse_endpoint(listen, kDefaultRendezvousPort);
  if (!endpoint) return fail("--listen: \"" + listen + "\" is not HOST:PORT");
  set_up_log(verbose);
  try {
    return serve(*endpoint);
  } catch (const Error& error) {
    return fail(error.what());
  }
}
