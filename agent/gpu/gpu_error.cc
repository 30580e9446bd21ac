// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "agent/gpu/gpu_helper.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "common/wall_time.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostKept = 3;  // for the report
const dev_t kKernelLog = makedev(1, 11);
constexpr int kMostTold = 8;  // in a round: a broken GPU may write hundreds
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

std::optional<GpuError> parse_gpu_error(std::string_view record) {
  std::string_view message = take_until(record, "\n");  // further lines: the record's properties
  std::string_view head = take_until(message, ";");
  take_until(head, ",");  // priority
  take_until(head, ",");  // sequence number
  const auto at_us = parsed_number<std::int64_t>(take_until(head, ","));
  constexpr std::string_view kStart = "NVRM: Xid (", kPci = "PCI:", kDeviceEnd = "): ";
  if (!at_us || !message.starts_with(kStart)) return std::nullopt;
  message.remove_prefix(kStart.size());
  if (message.starts_with(kPci)) message.remove_prefix(kPci.size());
  const std::size_t end = message.find(kDeviceEnd);
  if (end == std::string_view::npos) return std::nullopt;
  GpuError error;
  error.device = message.substr(0, end);
  error.at_us = *at_us;
  message.remove_prefix(end + kDeviceEnd.size());
  const auto xid = parsed_number<int>(take_until(message, ", "));
  if (!xid) return std::nullopt;
  error.xid = *xid;
  message.remove_prefix(std::min(message.find_first_not_of(' '), message.size()));
  error.text = message;
  return error;
}

GpuFault fault_of(int xid) {
  constexpr std::array kPrograms = {13, 31, 43, 45, 68};
  constexpr std::array kHardwares = {46,  48,  62,  64,  74,  79,  95, 109,
                                     119, 120, 140, 143, 155, 156, 158};
  const auto has = [xid](const auto& list) { return std::ranges::find(list, xid) != list.end(); };
  if (has(kPrograms)) return GpuFault::kProgram;
  return has(kHardwares) ? GpuFault::kHardware : GpuFault::kUnknown;
}

std::shared_ptr<GpuErrorLog> GpuErrorLog::open(boost::asio::io_context& io,
                                               std::function<void(const std::string&)> tell) {
  if (!may_have_gpus()) return nullptr;
  UniqueFd log(::open("/dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  // A container may have a link to its console in this place, whose input isn't ours.
  struct stat found {};
  if (!log || ::fstat(log.get(), &found) != 0 || found.st_rdev != kKernelLog) return nullptr;
  ::lseek(log.get(), 0, SEEK_END);
  return watch(io, std::move(log), std::move(tell));
}

std::shared_ptr<GpuErrorLog> GpuErrorLog::watch(boost::asio::io_context& io, UniqueFd log,
                                                std::function<void(const std::string&)> tell) {
  std::shared_ptr<GpuErrorLog> opened(new GpuErrorLog(io, std::move(log), std::move(tell)));
  opened->wait();
  return opened;
}

GpuErrorLog::GpuErrorLog(boost::asio::io_context& io, UniqueFd log,
                         std::function<void(const std::string&)> tell)
    : log_(io, log.release()), tell_(std::move(tell)) {}

void GpuErrorLog::wait() {
  when_readable(log_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->read_new();
    self->wait();
  });
}

void GpuErrorLog::begin_round() {
  read_new();
  kept_.clear();
  num_seen_ = 0;
}

void GpuErrorLog::read_new() {
  std::array<char, kMaxRecordBytes> record;
  while (true) {
    const ssize_t size = ::read(log_.native_handle(), record.data(), record.size());
    if (size < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: the kernel dropped some
    if (size <= 0) return;
    auto error = parse_gpu_error({record.data(), static_cast<std::size_t>(size)});
    if (!error) continue;
    if (num_seen_++ < kMostTold) {
      tell_(concat("GPU ", error->device, ": Xid ", error->xid, ": ", error->text,
                   advice(error->xid)));
    }
    kept_.push_back({std::move(*error), Clock::now()});
    if (kept_.size() <= kMostKept) continue;
    // After a GPU broke, many errors of the programs on it follow.
    const auto other = std::ranges::find_if(
        kept_, [](const Seen& seen) { return fault_of(seen.error.xid) != GpuFault::kHardware; });
    kept_.erase(other != kept_.end() ? other : kept_.begin());
  }
}

std::string GpuErrorLog::of_round() {
  read_new();
  const auto text_of = [now = Clock::now()](const Seen& seen) {
    return concat("Xid ", seen.error.xid, " on GPU ", seen.error.device, ", ",
                  seconds_in_tenths(now - seen.at), " s ago: ", seen.error.text,
                  advice(seen.error.xid));
  };
  const int num_others = num_seen_ - static_cast<int>(kept_.size());
  return concat(listed(kept_, "; ", text_of),
                num_others > 0 ? concat("; and ", num_others, " more in the kernel's log") : "");
}

}  // namespace ddprun::agent
