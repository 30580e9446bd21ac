// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/log_tail.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/unique_fd.h"

namespace ddprun::submit {
namespace {

constexpr std::chrono::milliseconds kLook{200};        // at the file
constexpr std::chrono::milliseconds kAskAfter{1'000};  // whoever knows whether the job is over

class TailedFile {
 public:
  explicit TailedFile(std::string path) : path_(std::move(path)) {}

  // False: there is no such file.
  bool open() {
    if (file_) return true;
    file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (!file_ && errno != ENOENT) refuse();
    return file_.valid();
  }

  // False: the view has ended.
  bool show_new(const LogView& view) {
    std::vector<char> buffer(65'536);  // on the heap: a stack may be small (ulimit -s)
    while (file_) {
      const ssize_t size = ::read(file_.get(), buffer.data(), buffer.size());
      if (size < 0 && errno != EINTR) refuse();
      if (size == 0) break;
      if (size > 0 && !view.show({buffer.data(), static_cast<std::size_t>(size)})) return false;
    }
    return true;
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(ErrorCode::kUnavailable, "can't read " + path_ + ": " + errno_text(errno));
  }

  const std::string path_;
  UniqueFd file_;
};

}  // namespace

void show_log(const std::string& path, bool follow, const LogView& view,
              const std::function<bool()>& is_over) {
  TailedFile file(path);
  if (!file.open() && !follow) {
    throw Error(ErrorCode::kUnavailable, path + " is not there (yet, or any more)");
  }
  bool was_over = false;
  Clock::time_point asked{};
  for (;;) {
    file.open();
    if (!file.show_new(view) || !follow || was_over) return;
    if (Clock::now() - asked >= kAskAfter) {
      was_over = is_over();  // what it wrote at its end is read once more
      asked = Clock::now();
      if (was_over) continue;
    }
    if (!view.pause(kLook)) return;
  }
}

}  // namespace ddprun::submit
