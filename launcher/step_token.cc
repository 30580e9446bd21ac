// SPDX-License-Identifier: Apache-2.0
#include "launcher/step_token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>

#include "common/bounded_call.h"
#include "common/byte_text.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/random_id.h"
#include "common/text.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{10};  // how long the file system may take
constexpr int kMostTries = 5;

// Throws: others could read or change the token there.
[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, concat(path, ": ", why));
}

[[noreturn]] void fail(const std::string& path, int error) {
  throw Error(ErrorCode::kUnavailable, concat(path, ": ", errno_text(error)));
}

// Makes the folder. Refuses one that others can change, as they could replace the token's file.
void make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail(folder, errno);
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) fail(folder, errno);
  if (!S_ISDIR(info.st_mode)) refuse(folder, "it is no directory");
  if (info.st_uid != ::geteuid()) refuse(folder, concat("it belongs to user ", info.st_uid));
  if ((info.st_mode & 022) != 0) refuse(folder, "others may change it: chmod 700 it");
}

// A file that is removed at the end of the scope.
class DraftFile {
 public:
  explicit DraftFile(const std::string& folder) : path_(folder + "/." + random_id()) {
    const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) fail(folder, errno);
    std::array<std::uint8_t, 32> bytes{};
    draw_random(bytes);
    std::string text = to_hex(bytes) + "\n";
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    int error = written < 0 ? errno : 0;
    if (written >= 0 && written != static_cast<ssize_t>(text.size())) error = ENOSPC;
    wipe(bytes.data(), bytes.size());
    wipe(text.data(), text.size());
    // Over a network, a full disk may be reported only here. Readers must find the whole file.
    if (error == 0 && ::fsync(file.get()) != 0) error = errno;
    if (error == 0) return;
    ::unlink(path_.c_str());
    fail(folder, error);
  }
  ~DraftFile() { ::unlink(path_.c_str()); }
  DraftFile(const DraftFile&) = delete;
  DraftFile& operator=(const DraftFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

std::optional<std::uint64_t> file_system_type(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return std::nullopt;
  return static_cast<std::uint32_t>(info.f_type);
}

}  // namespace

bool is_network_file_system(std::uint64_t type) {
  constexpr std::array<std::uint64_t, 10> kTypes = {
      0x6969,      // NFS
      0x0bd00bd0,  // Lustre
      0x47504653,  // GPFS
      0x19830326,  // BeeGFS
      0x00c36400,  // CephFS
      0xfe534d42,  // SMB 2
      0xff534d42,  // CIFS
      0x5346414f,  // AFS
      0xaad7aaea,  // PanFS
      0x20030528,  // OrangeFS
  };
  return std::ranges::find(kTypes, type) != kTypes.end();
}

std::optional<std::string> shared_folder(
    const Environment& environment, uid_t user,
    const std::function<std::optional<std::uint64_t>(const std::string& path)>& type_of) {
  if (const auto told = environment.find(env::kSharedDir); told != environment.end()) {
    // The directory may be open to everybody, such as /scratch, so this user has a folder in it.
    if (told->second.empty()) return std::nullopt;
    return concat(told->second, "/ddprun-", user);
  }
  const fs::path base = user_directory(environment, env::kXdgCacheHome, ".cache").value_or("");
  if (!base.is_absolute()) return std::nullopt;
  for (fs::path there = base;; there = there.parent_path()) {
    const auto type = type_of(there.string());
    if (type && is_network_file_system(*type)) return (base / "ddprun").string();
    if (type || there == there.parent_path()) return std::nullopt;
  }
}

std::string step_token_name(const Environment& environment) {
  const auto job = find_variable(environment, env::kSlurmJobId);
  const auto step = find_variable(environment, env::kSlurmStepId);
  if (!job || !step) return "";
  std::string name =
      concat("slurm-", find_variable(environment, env::kSlurmClusterName).value_or(""), "-", *job,
             ".", *step, "-", find_variable(environment, env::kSlurmRestartCount).value_or("0"));
  std::ranges::replace(name, '/', '_');
  return name;
}

StepToken agree_on_token(const std::string& folder, const std::string& name) {
  make_folder(folder);
  const std::string path = concat(folder, "/", name);
  const DraftFile draft(folder);
  for (int attempt = 1;; ++attempt) {
    // One node is first: the file's server decides on link(2) and O_EXCL.
    if (::link(draft.path().c_str(), path.c_str()) != 0 && errno != EEXIST) {
      fail(path, errno);
    }
    try {
      // open(2) asks the server again, whatever NFS has cached. If only this node's cache still has
      // the name, of an earlier ddprun in this step, it drops that: the loop tries again.
      return {path, Secret::from_file(path)};
    } catch (const Error&) {
      if (attempt == kMostTries) throw;
    }
  }
}

std::optional<StepToken> own_step_token(const Environment& environment) {
  struct Result {
    std::optional<StepToken> token;
    std::exception_ptr error;
  };
  const auto result = std::make_shared<Result>();
  const bool is_over =
      returns_before(Deadline::after(kPatience), [result, environment, user = ::geteuid()] {
        try {
          const auto folder = shared_folder(environment, user, file_system_type);
          if (!folder) return;
          // Makes a new user's ~/.cache. A DDPRUN_SHARED_DIR must exist.
          if (!environment.contains(env::kSharedDir)) {
            ::mkdir(fs::path(*folder).parent_path().c_str(), 0700);
          }
          result->token = agree_on_token(*folder, step_token_name(environment));
        } catch (...) {
          result->error = std::current_exception();
        }
      });
  if (!is_over) {
    throw Error(ErrorCode::kTimeout, concat("the file system that has the user's cache, or ",
                                            env::kSharedDir, ", doesn't answer"));
  }
  if (result->error) std::rethrow_exception(result->error);
  return result->token;
}

void remove_step_token(const std::string& path) {
  constexpr std::chrono::seconds kLastPatience{2};
  returns_before(Deadline::after(kLastPatience), [path] { ::unlink(path.c_str()); });
}

}  // namespace ddprun::launcher
