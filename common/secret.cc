// SPDX-License-Identifier: Apache-2.0
#include "common/secret.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/peer_user.h"
#include "common/regular_file.h"

namespace ddprun {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, concat("can't take the secret in ", path, ": ", why));
}

std::string octal(mode_t mode) {
  std::string digits;
  for (int shift = 9; shift >= 0; shift -= 3) {
    digits += static_cast<char>('0' + ((mode >> shift) & 7));
  }
  return digits;
}

bool is_space(std::uint8_t byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

}  // namespace

std::string token_variable_problem(const Environment& environment) {
  const auto value = environment.find(env::kTokenFile);
  if (value == environment.end() || !value->second.empty()) return "";
  return concat(env::kTokenFile, " is set, but empty: name the token's file there, or unset it");
}

std::string openness(const std::string& path, const struct stat& info, Others others) {
  const bool may_read = others == Others::kMayRead;
  // In a container's user namespace, root's files from outside it seem to be an outsider's.
  const bool is_roots = info.st_uid == 0 || (may_read && is_outsider(info.st_uid));
  if (info.st_uid != ::geteuid() && !is_roots) {
    return concat("it belongs to user ", info.st_uid, ", who could change it: it must be ",
                  "yours or root's");
  }
  if (may_read && (info.st_mode & 0022) == 0) return {};
  if (may_read) {
    return concat("others may change it (mode ", octal(info.st_mode & 07777), "): chmod go-w ",
                  path);
  }
  // A service gets its secret as a file root:ddprun with mode 0640.
  const mode_t allowed = info.st_uid == 0 ? 0740 : 0700;
  if ((info.st_mode & 0777 & ~allowed) != 0) {
    return concat("others may read or change it (mode ", octal(info.st_mode & 07777),
                  "): chmod 600 ", path);
  }
  return {};
}

Secret::Secret() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  page_bytes_ = (kMaxSecretBytes + page) / page * page;
  void* memory =
      ::mmap(nullptr, page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_system_error("mmap for a secret", errno);
  page_ = static_cast<std::uint8_t*>(memory);
  if (::madvise(page_, page_bytes_, MADV_DONTDUMP) != 0) {
    const int error = errno;
    ::munmap(page_, page_bytes_);
    throw_system_error("madvise(MADV_DONTDUMP) for a secret", error);
  }
  ::madvise(page_, page_bytes_, MADV_WIPEONFORK);
  if (::mlock(page_, page_bytes_) != 0) {
    log_debug("a secret can't be locked in memory (", errno_text(errno), "): it may be swapped");
  }
}

Secret::~Secret() {
  wipe(page_, page_bytes_);
  ::munmap(page_, page_bytes_);
}

std::shared_ptr<const Secret> Secret::from_file(const std::string& path) {
  const RegularFile file = open_regular_file(path);
  if (!file.fd) refuse(path, file.problem);
  if (const std::string problem = openness(path, file.info); !problem.empty()) {
    refuse(path, problem);
  }

  const std::shared_ptr<Secret> secret(new Secret);
  std::size_t size = 0;
  while (size <= kMaxSecretBytes) {
    const ssize_t got = ::read(file.fd.get(), secret->page_ + size, kMaxSecretBytes + 1 - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path, errno_text(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxSecretBytes) refuse(path, concat("it has more than ", kMaxSecretBytes, " bytes"));
  std::size_t begin = 0;
  while (begin < size && is_space(secret->page_[begin])) ++begin;
  while (size > begin && is_space(secret->page_[size - 1])) --size;
  if (size - begin < kMinSecretBytes) {
    refuse(path, concat("it has ", size - begin, " bytes, and needs at least ", kMinSecretBytes,
                        ": openssl rand -hex 32 makes a good one"));
  }
  secret->text_ = secret->page_ + begin;
  secret->size_ = size - begin;
  return secret;
}

std::shared_ptr<const Secret> Secret::from_flag(const char* flag, const std::string& path) {
  try {
    return from_file(path);
  } catch (const Error& error) {
    throw Error(error.code(), concat(flag, ": ", error.what()));
  }
}

}  // namespace ddprun
