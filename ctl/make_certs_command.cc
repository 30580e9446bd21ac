// SPDX-License-Identifier: Apache-2.0
// `ddprunctl make-certs` makes certificates to try TLS with, or for a lab.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/ending.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "ctl/commands.h"
#include "rendezvous/security/certificates.h"

namespace ddprun::ctl {
namespace {

constexpr int kMaxDays = 3650;

struct Output {
  std::string path;
  std::string text;
  mode_t mode;
};

[[noreturn]] void refuse(const char* what, const std::string& path, int error_number) {
  throw WriteError(concat(what, path, ": ", errno_text(error_number)));
}

// Writes all files, or none: if one can't be written, the directory is left as it was.
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

  void write(const Output& output) {
    const UniqueFd fd(
        ::open(output.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, output.mode));
    if (!fd) refuse("can't make ", output.path, errno);
    paths_.push_back(output.path);
    const int error = write_text(fd.get(), output.text);
    if (error != 0) refuse("can't write ", output.path, error);
    if (::fchmod(fd.get(), output.mode) != 0) refuse("chmod ", output.path, errno);
    // Some file systems report only now that they have no room.
    if (::fsync(fd.get()) != 0) refuse("can't write ", output.path, errno);
  }

  void keep() {
    paths_.clear();
    made_directory_ = false;
  }

 private:
  const std::string directory_;
  bool made_directory_ = false;
  std::vector<std::string> paths_;
};

class MakeCertsCommand : public Command {
 public:
  explicit MakeCertsCommand(CLI::App& app) : Command(app, "make-certs") {
    command_->add_option("DIR", directory_, "Where to; made if it isn't there")->required();
    command_->add_option("HOST", hosts_, "Names and addresses by which ddprund is reached")
        ->required();
    command_->add_option("--days", days_, "How long they are valid")
        ->check(CLI::Range(1, kMaxDays))
        ->capture_default_str();
  }

  // Writes the six files. If one of them exists already, writes none and names it. Throws
  // Error(kInvalidArgument) or as throw_system_error.
  int run() const override {
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
    return print_or_tell(concat("ddprund --tls-cert=", file("server.pem"),
                                " --tls-key=", file("server.key"), "   [--tls-ca=", file("ca.pem"),
                                " --tls-verify-client]\n", "ddprun --tls-ca=", file("ca.pem"),
                                "   [--tls-cert=", file("client.pem"),
                                " --tls-key=", file("client.key"), "]\n"));
  }

 private:
  std::string directory_;
  std::vector<std::string> hosts_;
  int days_ = 365;
};

}  // namespace

std::unique_ptr<Command> make_make_certs_command(CLI::App& app) {
  return std::make_unique<MakeCertsCommand>(app);
}

}  // namespace ddprun::ctl
