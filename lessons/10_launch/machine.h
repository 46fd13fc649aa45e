// Seams of the part "rendezvous": what its ranks find on the machine.
#pragma once

#include <lockstep/lesson/lesson.h>

#include <memory>

enum class OtherJob { runs, has_ended };

// Rank 0 of this job also plays another job, whose store it serves; the other ranks learn where
// from it. Throws UnavailableError where the ranks are not all on one machine.
class Machine {
 public:
  Machine(const lockstep::RankContext& context, OtherJob other_job);
  ~Machine();

  int free_port() const { return free_port_; }
  int other_jobs_port() const { return other_jobs_port_; }
  void until_rank_zero_is_gone() const;  // its process has ended

 private:
  struct Sockets;
  std::unique_ptr<Sockets> sockets_;  // rank 0's
  int free_port_ = 0, other_jobs_port_ = 0;
  int rank_zero_ = 0;  // its process id
};
