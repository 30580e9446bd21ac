// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;

// Others' turn after this much from one pipe.
constexpr int kReadsPerWakeup = 4;

// After a worker's end: a pipe holds less than this, so more comes from someone who is alive.
constexpr std::size_t kMaxDrainBytes = 1 << 20;

// Shared by all pipes: only the io thread reads, one pipe at a time.
std::array<char, kReadBytes>& read_buffer() {
  static std::array<char, kReadBytes> buffer;
  return buffer;
}

}  // namespace

WorkerOutput::WorkerOutput(boost::asio::io_context& io, Console& console, OutputMode mode,
                           int global_rank)
    : io_(io), console_(console), mode_(mode), global_rank_(global_rank) {}

WorkerStreams WorkerOutput::open() {
  WorkerStreams streams;
  if (mode_ == OutputMode::kPrefixed) {
    streams.stdout_fd = open_pipe(OutputStream::kStdout);
    streams.stderr_fd = open_pipe(OutputStream::kStderr);
  } else if (!console_.is_terminal(OutputStream::kStderr)) {
    streams.stderr_fd = open_pipe(OutputStream::kStderr);
    if (console_.same_file()) {
      // One pipe for both keeps their order.
      streams.stdout_fd.reset(::fcntl(streams.stderr_fd.get(), F_DUPFD_CLOEXEC, 3));
      if (!streams.stdout_fd) throw_system_error("duplicating a pipe", errno);
    }
  }
  return streams;
}

std::string WorkerOutput::prefix() const {
  return global_rank_ < 0 ? "[spare] " : concat("[", global_rank_, "] ");
}

void WorkerOutput::set_rank(int global_rank) {
  global_rank_ = global_rank;
  for (const auto& pipe : pipes_) {
    if (pipe && mode_ == OutputMode::kPrefixed) pipe->source.prefix = prefix();
  }
}

UniqueFd WorkerOutput::open_pipe(OutputStream stream) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("pipe for a worker's output", errno);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);  // ours alone; the write end stays blocking
  auto pipe = std::make_unique<Pipe>(io_);
  pipe->stream = stream;
  if (mode_ == OutputMode::kPrefixed) {
    pipe->source.prefix = prefix();
    pipe->source.redraws = global_rank_ == 0;
  }
  boost::system::error_code error;
  pipe->read_end.assign(read_end.get(), error);
  if (error) throw_system_error("watching a worker's output", error.value());
  read_end.release();
  pipes_.push_back(std::move(pipe));
  wait_readable(pipes_.size() - 1);
  return write_end;
}

void WorkerOutput::wait_readable(std::size_t index) {
  pipes_[index]->read_end.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [self = shared_from_this(), index](const boost::system::error_code& error) {
        if (!error && self->pipes_[index]) self->on_readable(index);
      });
}

void WorkerOutput::on_readable(std::size_t index) {
  const OutputStream stream = pipes_[index]->stream;
  ReadResult result = ReadResult::kMore;
  for (int i = 0; i < kReadsPerWakeup && result == ReadResult::kMore; ++i) {
    if (console_.is_full(stream)) break;
    result = read_once(index);
  }
  if (result == ReadResult::kEnded) end_pipe(index);
  console_.flush(stream);
  if (!pipes_[index]) return;
  if (!console_.is_full(stream)) return wait_readable(index);
  console_.when_room(stream, [weak = weak_from_this(), index] {
    const auto self = weak.lock();
    if (self && self->pipes_[index]) self->wait_readable(index);
  });
}

WorkerOutput::ReadResult WorkerOutput::read_once(std::size_t index) {
  Pipe& pipe = *pipes_[index];
  auto& buffer = read_buffer();
  ssize_t size;
  do {
    size = ::read(pipe.read_end.native_handle(), buffer.data(), buffer.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0) return ReadResult::kDrained;
  if (size == 0) return ReadResult::kEnded;
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(size));
  tail_.feed(pipe.stream == OutputStream::kStdout ? 0 : 1, bytes);
  LineMux& lines = console_.lines(pipe.stream);
  if (mode_ == OutputMode::kPrefixed) {
    lines.feed(pipe.source, bytes);
  } else {
    lines.raw(bytes);
  }
  return ReadResult::kMore;
}

void WorkerOutput::drain(std::size_t index) {
  if (!pipes_[index]) return;
  const OutputStream stream = pipes_[index]->stream;
  ReadResult result = ReadResult::kMore;
  for (std::size_t bytes = 0; bytes < kMaxDrainBytes && result == ReadResult::kMore;
       bytes += kReadBytes) {
    result = read_once(index);
  }
  console_.lines(stream).end(pipes_[index]->source);
  if (result == ReadResult::kEnded) end_pipe(index);
  console_.flush(stream);
}

void WorkerOutput::worker_ended() {
  for (std::size_t i = 0; i < pipes_.size(); ++i) drain(i);
}

void WorkerOutput::close() {
  worker_ended();
  abandon();
}

void WorkerOutput::abandon() {
  for (std::size_t i = 0; i < pipes_.size(); ++i) {
    if (pipes_[i]) end_pipe(i);
  }
}

void WorkerOutput::end_pipe(std::size_t index) {
  console_.lines(pipes_[index]->stream).end(pipes_[index]->source);
  pipes_[index].reset();
}

}  // namespace ddprun::agent
