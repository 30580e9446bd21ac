// SPDX-License-Identifier: Apache-2.0
#include "ctl/make_certs_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "common/write_error.h"
#include "ctl/standard_output.h"
#include "rendezvous/security/certificates.h"

namespace ddprun::ctl {
namespace {

constexpr int kMaxDays = 3650;

struct Output {
  std::string path;
  std::string text;
  mode_t mode;
};

// All, or, where one can't be written, none: the directory is as it was.
class NewFiles {
 public:
  explicit NewFiles(std::string directory) : directory_(std::move(directory)) {
    std::error_code error;
    made_directory_ = std::filesystem::create_directories(directory_, error);
    if (error) throw WriteError(concat("can't make ", directory_, ": ", error.message()));
  }
  ~NewFiles() {
    for (const std::string& path : paths_) ::unlink(path.c_str());
    if (made_directory_) ::rmdir(directory_.c_str());
  }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  void write(const Output& output);
  void keep() {
    paths_.clear();
    made_directory_ = false;
  }

 private:
  const std::string directory_;
  bool made_directory_ = false;
  std::vector<std::string> paths_;
};

[[noreturn]] void refuse(const char* what, const std::string& path, int error_number) {
  throw WriteError(concat(what, path, ": ", errno_text(error_number)));
}

void NewFiles::write(const Output& output) {
  const UniqueFd fd(
      ::open(output.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, output.mode));
  if (!fd) refuse("can't make ", output.path, errno);
  paths_.push_back(output.path);
  std::size_t written = 0;
  while (written < output.text.size()) {
    const ssize_t size =
        ::write(fd.get(), output.text.data() + written, output.text.size() - written);
    if (size < 0 && errno != EINTR) refuse("can't write ", output.path, errno);
    if (size > 0) written += static_cast<std::size_t>(size);
  }
  if (::fchmod(fd.get(), output.mode) != 0) refuse("chmod ", output.path, errno);
  // A file system may find out so late that it has no room.
  if (::fsync(fd.get()) != 0) refuse("can't write ", output.path, errno);
}

}  // namespace

MakeCertsCommand::MakeCertsCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "make-certs",
          "Make certificates for a lab: an authority (ca.pem), what ddprund serves with "
          "(server.pem, for every HOST) and what ddprun may show (client.pem), each with its "
          ".key.")) {
  command_->add_option("DIR", directory_, "Where to; made if it isn't there")->required();
  command_->add_option("HOST", hosts_, "Names and addresses by which ddprund is reached")
      ->required();
  command_->add_option("--days", days_, "How long they are valid")
      ->check(CLI::Range(1, kMaxDays))
      ->capture_default_str();
}

ExitCode MakeCertsCommand::run() const {
  const auto file = [this](const char* name) { return directory_ + "/" + name; };
  for (const char* name :
       {"ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"}) {
    struct stat info {};
    if (::lstat(file(name).c_str(), &info) == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  file(name) +
                      " is there already, and nothing is overwritten: name another "
                      "directory, or remove it");
    }
  }
  const security::Days valid(days_);
  const auto authority = security::make_authority("ddprun lab authority", valid);
  const auto server = security::issue(authority, hosts_.front(), hosts_, valid);
  const auto client = security::issue(authority, "ddprun client", {}, valid);
  NewFiles files(directory_);
  constexpr mode_t kOpen = 0644, kHidden = 0600;
  for (const Output& output : {Output{file("ca.pem"), authority.cert, kOpen},
                               {file("ca.key"), authority.key, kHidden},
                               {file("server.pem"), server.cert, kOpen},
                               {file("server.key"), server.key, kHidden},
                               {file("client.pem"), client.cert, kOpen},
                               {file("client.key"), client.key, kHidden}}) {
    files.write(output);
  }
  files.keep();
  return static_cast<ExitCode>(print_or_tell(
      concat("ddprund --tls-cert=", file("server.pem"), " --tls-key=", file("server.key"),
             "   [--tls-ca=", file("ca.pem"), " --tls-verify-client]\n",
             "ddprun --tls-ca=", file("ca.pem"), "   [--tls-cert=", file("client.pem"),
             " --tls-key=", file("client.key"), "]\n"),
      0));
}

}  // namespace ddprun::ctl
