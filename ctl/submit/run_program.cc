// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/run_program.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/fd_text.h"
#include "common/memory.h"
#include "common/text.h"
#include "common/unique_fd.h"

namespace ddprun::submit {
namespace {

constexpr std::size_t kMostOutputBytes = std::size_t{64} << 20;

UniqueFd file_of(const std::string& text) {
  UniqueFd file = make_memory_file("input");
  if (const int error = write_text(file.get(), text); error != 0)
    throw_system_error("write", error);
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

// Kills and reaps its child, unless wait() did.
class ChildEnd {
 public:
  explicit ChildEnd(pid_t pid) : pid_(pid) {}
  ~ChildEnd() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  ChildEnd(const ChildEnd&) = delete;
  ChildEnd& operator=(const ChildEnd&) = delete;

  // Blocks until the child has ended.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return WIFSIGNALED(status) ? exit_status_for_signal(WTERMSIG(status)) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
};

class Reader {
 public:
  Reader(const ProgramCall& call, UniqueFd out, UniqueFd err)
      : call_(call), out_(std::move(out)), err_(std::move(err)) {}

  // Reads until the program has ended and all its output is read. False: the view has ended.
  bool read_all(int pidfd) {
    Deadline deadline = limit_from_now();
    bool has_ended = false;
    while (out_ || err_ || !has_ended) {
      std::array<pollfd, 3> polled = {pollfd{out_.get(), POLLIN, 0}, pollfd{err_.get(), POLLIN, 0},
                                      pollfd{has_ended ? -1 : pidfd, POLLIN, 0}};
      constexpr int kLookMs = 200;
      const int left = has_ended ? 0 : deadline.poll_timeout_ms();
      const int wait = call_.view != nullptr ? std::min(kLookMs, left) : left;
      const int ready = ::poll(polled.data(), polled.size(), wait);
      if (ready < 0 && errno != EINTR) throw_system_error("poll", errno);
      // Processes that the program left behind may keep the pipes open: these aren't waited for.
      if (ready == 0 && has_ended) break;
      if (call_.view != nullptr && !call_.view->pause(std::chrono::milliseconds(0))) return false;
      if (ready == 0 && deadline.expired()) throw_timeout();
      if (ready <= 0) continue;
      if (polled[0].revents != 0 && !take_out()) return false;
      if (polled[1].revents != 0) take_err();
      if (call_.view != nullptr) deadline = limit_from_now();
      has_ended = has_ended || polled[2].revents != 0;
    }
    return true;
  }

  ProgramEnd take_end() { return std::move(end_); }

 private:
  Deadline limit_from_now() const {
    return call_.limit.count() > 0 ? Deadline::after(call_.limit)
                                   : Deadline::after(std::chrono::hours::max());
  }

  [[noreturn]] void throw_timeout() const {
    throw Error(ErrorCode::kTimeout, concat(call_.argv.front(), " did not answer within ",
                                            call_.limit.count() / 1000, " s"));
  }

  // False: the view has ended.
  bool take_out() {
    const std::string_view text = read_from(out_);
    if (call_.view != nullptr) return text.empty() || call_.view->show(text);
    if (end_.out.size() + text.size() > kMostOutputBytes) {
      throw Error(ErrorCode::kResourceExhausted, call_.argv.front() + " said more than 64 MiB");
    }
    end_.out += text;
    return true;
  }

  void take_err() {
    const std::string_view text = read_from(err_);
    if (end_.err.size() < kMostOutputBytes) end_.err += text;
  }

  // Empty: there is nothing to read now, or any more.
  std::string_view read_from(UniqueFd& fd) {
    const ssize_t size = ::read(fd.get(), buffer_.data(), buffer_.size());
    if (size == 0 || (size < 0 && errno != EINTR)) fd.reset();
    return {buffer_.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
  }

  const ProgramCall& call_;
  UniqueFd out_, err_;
  // On the heap: a stack may be small (ulimit -s).
  std::vector<char> buffer_ = std::vector<char>(65'536);
  ProgramEnd end_;
};

}  // namespace

Child start_program(ChildCommand command, const Environment& more,
                    const std::vector<std::string>& without) {
  Environment environment = current_environment();
  for (const std::string& name : without) environment.erase(name);
  for (const auto& [name, value] : more) environment[name] = value;
  command.environment = to_strings(environment);
  try {
    return start_child(command);
  } catch (const StartError& error) {
    const int number = error.error_number();
    if (number != ENOENT && number != EACCES && number != ENOTDIR) throw;
    throw Error(ErrorCode::kUnsupported, error.what());
  }
}

ProgramEnd run_program(const ProgramCall& call) {
  const UniqueFd input = file_of(call.input);
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const Child child =
      start_program({.argv = call.argv,
                     .descriptors = {input.get(), out.write_end.get(), err.write_end.get()},
                     .directory = call.directory},
                    call.environment, call.without);
  ChildEnd child_end(child.pid);
  out.write_end.reset();
  err.write_end.reset();
  Reader reader(call, std::move(out.read_end), std::move(err.read_end));
  const bool is_whole = reader.read_all(child.pidfd.get());
  ProgramEnd end = reader.take_end();
  if (is_whole) end.status = child_end.wait();
  return end;
}

std::string failure_text(const ProgramEnd& end) {
  for (const std::string* text : {&end.err, &end.out}) {
    const std::size_t last = text->find_last_not_of(" \n\r");
    if (last == std::string::npos) continue;
    const std::size_t begin = text->rfind('\n', last);
    return one_line(text->substr(begin == std::string::npos ? 0 : begin + 1,
                                 last - (begin == std::string::npos ? -1 : begin)));
  }
  return "exit status " + std::to_string(end.status);
}

}  // namespace ddprun::submit
