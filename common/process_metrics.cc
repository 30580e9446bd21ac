// SPDX-License-Identifier: Apache-2.0
#include "common/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "common/process_stat.h"

namespace ddprun::metrics {
namespace {

constexpr char kOwnDescriptors[] = "/proc/self/fd";
constexpr std::uint64_t kMostCounted = 16'384;

std::optional<std::uint64_t> count_open_fds() {
  struct stat directory {};
  if (::stat(kOwnDescriptors, &directory) == 0 && directory.st_size > 0) {
    return static_cast<std::uint64_t>(directory.st_size);
  }
  DIR* const open = ::opendir(kOwnDescriptors);
  if (open == nullptr) return std::nullopt;
  std::uint64_t num = 0;
  while (num <= kMostCounted && ::readdir(open) != nullptr) ++num;
  ::closedir(open);
  if (num > kMostCounted) return std::nullopt;
  return num < 3 ? 0 : num - 3;  // ".", "..", and the one that reads them
}

std::uint64_t boot_time() {
  std::ifstream file("/proc/stat");
  return parse_boot_time(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace

std::uint64_t parse_boot_time(std::string_view proc_stat) {
  constexpr std::string_view kLine = "\nbtime ";
  const std::size_t at = proc_stat.find(kLine);
  if (at == std::string_view::npos) return 0;
  std::uint64_t seconds = 0;
  std::from_chars(proc_stat.data() + at + kLine.size(), proc_stat.data() + proc_stat.size(),
                  seconds);
  return seconds;
}

ProcessUse own_use() {
  ProcessUse use;
  rusage spent{};
  if (::getrusage(RUSAGE_SELF, &spent) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    use.cpu_seconds = seconds(spent.ru_utime) + seconds(spent.ru_stime);
  }
  std::ifstream pages("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  if (pages >> size >> resident) {
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    use.virtual_bytes = size * page_bytes;
    use.resident_bytes = resident * page_bytes;
  }
  use.num_open_fds = count_open_fds();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) use.max_fds = limit.rlim_cur;
  ProcessStat stat;
  static const std::uint64_t kBoot = boot_time();  // the file is long on large machines
  if (kBoot > 0 && read_process_stat(::getpid(), &stat)) {
    use.start_timestamp_seconds =
        static_cast<double>(kBoot) +
        static_cast<double>(stat.start_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  return use;
}

void write(TextWriter& out, const ProcessUse& use) {
  out.single("process_cpu_seconds_total", Type::kCounter, "User and system CPU time spent.",
             use.cpu_seconds);
  out.single("process_virtual_memory_bytes", Type::kGauge, "Size of the address space.",
             use.virtual_bytes);
  out.single("process_resident_memory_bytes", Type::kGauge, "Memory that is in RAM.",
             use.resident_bytes);
  if (use.num_open_fds) {
    out.single("process_open_fds", Type::kGauge, "Open file descriptors.", *use.num_open_fds);
  }
  out.single("process_max_fds", Type::kGauge, "How many file descriptors may be open.",
             use.max_fds);
  out.single("process_start_time_seconds", Type::kGauge, "When it began, since 1970.",
             use.start_timestamp_seconds);
}

}  // namespace ddprun::metrics
