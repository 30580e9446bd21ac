// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_error_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>

#include "agent/gpu/gpu_helper.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostKept = 3;  // for the report
constexpr int kMostTold = 8;          // in a round: a broken GPU may write hundreds
constexpr std::size_t kMaxRecordBytes = 8192;

std::string_view advice(int xid) {
  switch (fault_of(xid)) {
    case GpuFault::kProgram:
      return " (most often the program's own fault)";
    case GpuFault::kHardware:
      return " (the GPU's fault, not the program's: take the node out; ddprunctl doctor)";
    case GpuFault::kUnknown:
      return "";
  }
  return "";
}

}  // namespace

std::shared_ptr<GpuErrorLog> GpuErrorLog::open(boost::asio::io_context& io,
                                               std::function<void(const std::string&)> tell,
                                               const std::string& file) {
  if (!may_have_gpus()) return nullptr;
  UniqueFd log(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!log) return nullptr;
  ::lseek(log.get(), 0, SEEK_END);
  std::shared_ptr<GpuErrorLog> opened(new GpuErrorLog(io, std::move(log), std::move(tell)));
  opened->wait();
  return opened;
}

GpuErrorLog::GpuErrorLog(boost::asio::io_context& io, UniqueFd log,
                         std::function<void(const std::string&)> tell)
    : log_(io, log.release()), tell_(std::move(tell)) {}

void GpuErrorLog::wait() {
  when_readable(log_, [self = shared_from_this()] {
    self->read_new();
    self->wait();
  });
}

void GpuErrorLog::begin_round() {
  read_new();
  latest_.clear();
  num_told_ = 0;
}

void GpuErrorLog::read_new() {
  std::array<char, kMaxRecordBytes> record;
  while (true) {
    const ssize_t size = ::read(log_.native_handle(), record.data(), record.size());
    if (size < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: the kernel dropped some
    if (size <= 0) return;
    auto error = parse_gpu_error({record.data(), static_cast<std::size_t>(size)});
    if (!error) continue;
    if (num_told_++ < kMostTold) {
      tell_(concat("GPU ", error->device, ": Xid ", error->xid, ": ", error->text,
                   advice(error->xid)));
    }
    latest_.push_back({std::move(*error), Clock::now()});
    if (latest_.size() > kMostKept) latest_.pop_front();
  }
}

std::string GpuErrorLog::of_round() {
  read_new();
  const auto text_of = [now = Clock::now()](const Seen& seen) {
    const double seconds = std::chrono::duration<double>(now - seen.at).count();
    return concat("Xid ", seen.error.xid, " on GPU ", seen.error.device, ", ",
                  std::round(seconds * 10) / 10, " s ago: ", seen.error.text,
                  advice(seen.error.xid));
  };
  return listed(latest_, "; ", text_of);
}

}  // namespace ddprun::agent
