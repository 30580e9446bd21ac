// SPDX-License-Identifier: Apache-2.0
#include "launcher/standing/gang_process.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::launcher {

namespace asio = boost::asio;

namespace {

// Until it is executed. A directory can be on a file system that never answers.
constexpr std::chrono::seconds kStartLimit{10};

}  // namespace

std::shared_ptr<GangProcess> GangProcess::start(asio::io_context& io, GangCommand command,
                                                Handlers handlers) {
  ChildCommand child;
  child.argv = std::move(command.argv);
  child.environment = std::move(command.environment);
  child.descriptors = {ChildCommand::kNothing, command.out.get(), command.err.get()};
  child.directory = command.directory;
  child.own_session = true;
  child.dies_with_us = true;
  // The agent is to survive a machine that runs out of memory; the job isn't.
  child.plain_oom_score = true;
  // The agent is small, and of one thread that matters: a copy of it costs little.
  Pipe report = make_pipe();
  std::shared_ptr<GangProcess> gang(
      new GangProcess(io, child, std::move(handlers), std::move(report.read_end)));
  gang->child_ = agent::WatchedChild::adopt(io, start_child_apart(child, report.write_end.get()),
                                            [weak = std::weak_ptr(gang)](int wait_status) {
                                              if (const auto self = weak.lock())
                                                self->end(wait_status);
                                            });
  report.write_end.reset();
  gang->await_report();
  gang->limit_.expires_after(kStartLimit);
  gang->limit_.async_wait([gang](boost::system::error_code error) {
    if (!error) gang->give_up();
  });
  return gang;
}

GangProcess::GangProcess(asio::io_context& io, const ChildCommand& command, Handlers handlers,
                         UniqueFd report)
    : program_(command.argv.front()),
      directory_(command.directory),
      handlers_(std::move(handlers)),
      report_(io, report.release()),
      limit_(io) {
  report_.non_blocking(true);
}

void GangProcess::await_report() {
  report_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](boost::system::error_code error) {
                       if (!error) self->take_report();
                     });
}

// The pipe's end without a word says that it is executed, or was killed before.
void GangProcess::take_report() {
  StartFailure failure;
  const ssize_t size = ::read(report_.native_handle(), &failure, sizeof failure);
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return await_report();
  boost::system::error_code ignored;
  report_.close(ignored);
  limit_.cancel();
  if (size == sizeof failure) {
    why_ = concat(failure.is_of_directory ? "can't enter " + directory_ : "can't start " + program_,
                  ": ", errno_text(failure.error_number));
  } else if (handlers_.began) {
    std::exchange(handlers_.began, nullptr)();
  }
}

// At once: where the file system holds the child, SIGKILL doesn't end it either.
void GangProcess::give_up() {
  boost::system::error_code ignored;
  report_.close(ignored);
  why_ = concat("can't enter ", directory_, ": no answer within ", kStartLimit.count(), " s");
  signal(SIGKILL);
  end(0);
}

void GangProcess::end(int wait_status) {
  if (!handlers_.ended) return;
  if (report_.is_open()) take_report();  // written before it ended
  handlers_.began = nullptr;
  std::exchange(handlers_.ended, nullptr)(wait_status, why_);
}

}  // namespace ddprun::launcher
