// SPDX-License-Identifier: Apache-2.0
// ddprund: the rendezvous daemon.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "common/suggest.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/dropping_sink.h"

namespace {

using namespace ddprun;

void write_log(LogLevel level, std::string_view message) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  spdlog::log(kLevels[static_cast<int>(level)], "{}", one_line(message));
}

void set_up_log(bool verbose) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "ddprund", std::make_shared<rendezvous::DroppingSink>(STDERR_FILENO)));
  spdlog::set_level(spdlog::level::debug);  // common/log.h drops what is below its level
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l: %v");
  set_log_level(verbose ? LogLevel::kDebug : LogLevel::kInfo);
  set_log_sink(write_log);
}

int fail(const std::string& message, ExitCode code = ExitCode::kUsage) {
  std::fprintf(stderr, "ddprund: %s\n", message.c_str());
  return static_cast<int>(code);
}

int fail_unknown(const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  if (!flag.starts_with('-')) return fail("takes no argument, got \"" + word + "\"");
  return fail("unknown flag " + flag +
              did_you_mean(flag, {"--listen", "--verbose", "--version", "--help"}) +
              " (see ddprund --help)");
}

int serve(const Endpoint& endpoint) {
  auto listeners = rendezvous::bind_endpoint(endpoint);
  std::vector<SocketAddress> addresses;
  for (const UniqueFd& listener : listeners) addresses.push_back(local_address(listener.get()));
  boost::asio::io_context io(1);
  boost::asio::signal_set signals(io, SIGTERM, SIGINT);
  rendezvous::DaemonOptions options;
  rendezvous::Daemon daemon(io, std::move(listeners), options);
  signals.async_wait([&](boost::system::error_code error, int number) {
    if (error) return;
    log_info("stopping: signal ", number);
    io.stop();
  });
  // Said when all is in place: who waits for this line may connect, or end us, from then on.
  for (const SocketAddress& address : addresses) {
    log_info("listening on ", address.text());
    if (!address.is_loopback()) {
      log_warning("anyone who reaches ", address.text(),
                  " can join jobs and read their keys: use it on a trusted network only");
    }
  }
  io.run();
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more must not end the jobs
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
  } catch (const CLI::ExtrasError&) {
    return fail_unknown(app.remaining().front());
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (see ddprund --help)");
  }
  const auto endpoint = parse_endpoint(listen, kDefaultRendezvousPort);
  if (!endpoint) return fail("--listen: \"" + listen + "\" is not HOST:PORT");
  set_up_log(verbose);
  try {
    return serve(*endpoint);
  } catch (const Error& error) {
    return fail(error.what(), exit_code_for(error.code()));
  } catch (const std::exception& error) {
    return fail("internal error: " + std::string(error.what()), ExitCode::kInternal);
  }
}
