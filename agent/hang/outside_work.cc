// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/outside_work.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace ddprun::agent {
namespace {

constexpr std::uint64_t kBytesPerUnit = 4;  // the counters count 32-bit words

std::uint64_t counter(const std::filesystem::path& file) {
  std::uint64_t value = 0;
  std::ifstream(file) >> value;
  return value;
}

// Lower rates may be heartbeats, so they don't count.
constexpr std::uint64_t kLeastRate = 10'000;
constexpr std::uint64_t kLeastRdmaRate = 1'000'000;

std::string rate_text(std::uint64_t bytes_per_second) {
  constexpr std::array kUnits = {"kB/s", "MB/s", "GB/s", "TB/s"};
  double value = static_cast<double>(bytes_per_second) / 1000;
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::uint64_t per_second(std::uint64_t bytes, Clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds <= 0 ? 0 : static_cast<std::uint64_t>(static_cast<double>(bytes) / seconds);
}

}  // namespace

std::uint64_t rdma_port_bytes(const std::string& folder) {
  namespace fs = std::filesystem;
  std::uint64_t words = 0;
  std::error_code none;
  for (const auto& device : fs::directory_iterator(folder, none)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", none)) {
      const fs::path counters = port.path() / "counters";
      words += counter(counters / "port_xmit_data") + counter(counters / "port_rcv_data");
    }
  }
  return words * kBytesPerUnit;
}

OutsideWork::OutsideWork(boost::asio::io_context& io, const std::string& gpus_program,
                         std::size_t num_ranks)
    : gpus_(io, gpus_program), ranks_(num_ranks) {}

void OutsideWork::look(const Families& families) {
  const bool any = std::any_of(families.begin(), families.end(),
                               [](const auto& family) { return family.has_value(); });
  const Clock::time_point now = Clock::now();
  const Clock::duration passed = looked_at_ ? now - *looked_at_ : Clock::duration::zero();
  sockets_ = any ? tcp_socket_bytes() : std::nullopt;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (i < families.size() && families[i]) {
      look_at(ranks_[i], *families[i], passed);
    } else {
      ranks_[i].sockets.forget();
      ranks_[i].gpu_percent = 0;
      ranks_[i].network_rate = 0;
    }
  }
  gpu_shares_.reset();
  looked_at_ = any ? std::optional(now) : std::nullopt;
  if (!any) return;
  gpus_.ask(GpuRequest::kUtilisation,
            [this](const std::string& lines) { gpu_shares_ = parse_gpu_shares(lines); });
  const std::uint64_t rdma = rdma_port_bytes();
  rdma_rate_ = rdma > rdma_bytes_ ? per_second(rdma - rdma_bytes_, passed) : 0;
  rdma_bytes_ = rdma;
}

void OutsideWork::look_at(Rank& rank, const std::vector<pid_t>& family, Clock::duration passed) {
  if (sockets_) {
    const std::uint64_t before = rank.sockets.moved();
    rank.sockets.look(family, *sockets_);
    rank.network_rate = per_second(rank.sockets.moved() - before, passed);
  }
  if (!gpu_shares_) return;
  rank.gpu_percent = 0;
  for (const pid_t pid : family) {
    const auto found = gpu_shares_->find(pid);
    if (found != gpu_shares_->end()) rank.gpu_percent = std::max(rank.gpu_percent, found->second);
  }
  rank.gpu +=
      std::chrono::duration_cast<std::chrono::microseconds>(passed) * rank.gpu_percent / 100;
}

void OutsideWork::add_to(ProcessFacts& facts, std::size_t local_rank) const {
  const Rank& rank = ranks_.at(local_rank);
  facts.network_bytes = rank.sockets.moved();
  facts.gpu = rank.gpu;
}

WorkRates OutsideWork::rates(std::size_t local_rank) const {
  const Rank& rank = ranks_.at(local_rank);
  return {rank.gpu_percent, rank.network_rate, rdma_rate_};
}

std::string describe_work(const WorkRates& rates) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (rates.gpu_percent > 0) add("GPU " + std::to_string(rates.gpu_percent) + " %");
  if (rates.network >= kLeastRate) add(rate_text(rates.network) + " over sockets");
  if (rates.rdma >= kLeastRdmaRate) add(rate_text(rates.rdma) + " on this node's RDMA ports");
  return text;
}

}  // namespace ddprun::agent
