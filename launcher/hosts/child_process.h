// SPDX-License-Identifier: Apache-2.0
// A child process with descriptors of our choice, watched by pidfd and reaped. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::launcher {

struct ChildCommand {
  std::vector<std::string> argv;         // argv[0] is looked for in PATH where it has no "/"
  std::vector<std::string> environment;  // NAME=VALUE
  std::vector<UniqueFd> descriptors;     // become 0, 1, 2, …; the rest is closed on exec
  bool own_session = false;              // the terminal's signals don't reach it
};

// As execve() takes them: up to a null pointer. They point into `strings`.
std::vector<char*> exec_pointers(std::vector<std::string>& strings);

class ChildProcess : public std::enable_shared_from_this<ChildProcess> {
 public:
  // Waits until it is executed. All signals have their default action, none is blocked. `ended` is
  // called once from the io context, when it is reaped. Throws Error(kSystem) naming the program.
  static std::shared_ptr<ChildProcess> start(boost::asio::io_context& io, ChildCommand command,
                                             std::function<void(int wait_status)> ended);
  // A child of this process that was started in another way and that nobody else reaps. `ended`: as
  // start()'s. Throws as open_child_pidfd(), naming `program`; then the child is gone.
  static std::shared_ptr<ChildProcess> adopt(boost::asio::io_context& io, pid_t pid,
                                             const std::string& program,
                                             std::function<void(int wait_status)> ended);

  // Nothing where it has ended.
  void signal(int number);
  // `ended` is not called any more; it is reaped all the same.
  void forget() { ended_ = nullptr; }

 private:
  ChildProcess(boost::asio::io_context& io, pid_t pid, UniqueFd pidfd,
               std::function<void(int)> ended);
  void wait_for_end();

  pid_t pid_;  // 0: reaped
  boost::asio::posix::stream_descriptor pidfd_;
  std::function<void(int)> ended_;
};

// Both ends close-on-exec. Throws as throw_system_error.
struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};
Pipe make_pipe();

}  // namespace ddprun::launcher
