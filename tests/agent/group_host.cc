// SPDX-License-Identifier: Apache-2.0
// An agent to be killed by tests: runs one shell script in N workers until stdin ends, then stops
// them. Arguments: number of workers, 1 for prefixed output else 0, script.
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdlib>
#include <memory>

#include "agent/console.h"
#include "agent/worker_group.h"

extern char** environ;

int main(int argc, char** argv) {
  using namespace ddprun::agent;
  if (argc != 4) return 2;
  boost::asio::io_context io;
  Console console(io);
  WorkerGroupOptions options;
  options.several_workers = std::atoi(argv[2]) != 0;
  int exit_code = 0;
  std::unique_ptr<WorkerGroup> group;
  const auto stop = [&] { group->stop(std::chrono::seconds(5)); };
  WorkerGroupEvents events;
  events.worker_failed = [&](const ddprun::membership::WorkerFailure& failure, auto) {
    exit_code = failure.signal_number ? 128 + failure.signal_number : failure.exit_code;
    stop();
  };
  events.all_succeeded = stop;
  events.all_gone = [&] { io.stop(); };
  group = std::make_unique<WorkerGroup>(io, console, options, 0, events);
  std::vector<WorkerSpec> specs(static_cast<std::size_t>(std::atoi(argv[1])));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].global_rank = specs[i].local_rank = static_cast<int>(i);
    specs[i].argv = {"/bin/sh", "-c", argv[3]};
    for (char** variable = environ; *variable; ++variable) {
      specs[i].environment.push_back(*variable);
    }
  }
  group->start(std::move(specs));
  io.run();
  return console.finish(ddprun::Deadline::after(std::chrono::seconds(20))) == 0 ? exit_code : 99;
}
